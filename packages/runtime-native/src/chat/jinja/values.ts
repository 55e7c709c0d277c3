/** Values of the interpreter, and how Python writes them. */
import { Environment, Interpreter, type Value } from './library.js';

/** A value of JavaScript as one of the interpreter. */
export function toValue(value: unknown): Value {
  return new Environment().set('value', value);
}

/** A list of values. */
export function toList(items: readonly Value[]): Value {
  const list = toValue([]);
  (list as { value: unknown }).value = [...items];
  return list;
}

/** A tuple of values, which Python writes in parentheses. */
export function toTuple(items: readonly Value[]): Value {
  const tuple = new Interpreter(new Environment()).evaluate(
    { type: 'TupleLiteral', value: [] },
    new Environment(),
  );
  (tuple as { value: unknown }).value = [...items];
  return tuple;
}

/** Items of what Python can iterate over: a list, the characters of a text, the keys of a mapping; else undefined. */
export function itemsOf(value: Value): readonly Value[] | undefined {
  if (value.type === 'ArrayValue' || value.type === 'TupleValue') return value.value as Value[];
  if (value.type === 'StringValue') return Array.from(value.value as string, toValue);
  if (value.type === 'ObjectValue') return [...(value.value as Map<string, Value>).keys()].map(toValue);
  if (value.type === 'UndefinedValue') return [];
  return undefined;
}

/** `str(value)`. */
export function pythonText(value: Value): string {
  switch (value.type) {
    case 'StringValue':
      return value.value as string;
    case 'UndefinedValue':
      return '';
    case 'NullValue':
      return 'None';
    case 'BooleanValue':
      return value.value ? 'True' : 'False';
    case 'ArrayValue':
      return `[${(value.value as Value[]).map(representation).join(', ')}]`;
    case 'TupleValue': {
      const items = (value.value as Value[]).map(representation);
      return `(${items.join(', ')}${items.length === 1 ? ',' : ''})`;
    }
    case 'ObjectValue': {
      const entries = [...(value.value as Map<string, Value>)];
      return `{${entries.map(([key, each]) => `${quoted(key)}: ${representation(each)}`).join(', ')}}`;
    }
    default:
      return value.toString();
  }
}

const representation = (value: Value): string =>
  value.type === 'StringValue' ? quoted(value.value as string) : pythonText(value);

/** `repr` of a text. */
function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escapes: Record<string, string> = {
    '\\': '\\\\',
    '\n': '\\n',
    '\r': '\\r',
    '\t': '\\t',
    [quote]: `\\${quote}`,
  };
  return quote + Array.from(text, (c) => escapes[c] ?? c).join('') + quote;
}
