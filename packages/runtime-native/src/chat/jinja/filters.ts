/** Filters and tests of jinja2 that the library lacks or answers otherwise. */

import type { Value } from './library.js';
import { STRING_METHODS, strip } from './strings.js';
import { itemsOf, pythonText, toList, toTuple, toValue } from './values.js';

/** Arguments of a call. */
export interface Arguments {
  readonly args: readonly Value[];
  readonly kwargs: ReadonlyMap<string, Value>;
}
/** What filters that call others need. */
export interface Context {
  filter(name: string, value: Value, args: Arguments): Value;
  test(name: string, ...values: Value[]): boolean;
}
/** Undefined: the filter of the library. */
type Filter = (value: Value, args: Arguments, context: Context) => Value | undefined;

const argument = ({ args, kwargs }: Arguments, index: number, name: string) =>
  args[index] ?? kwargs.get(name);
const numberOf = (value: Value | undefined, otherwise: number) =>
  typeof value?.value === 'number' ? value.value : otherwise;
const textOf = (value: Value | undefined, otherwise: string) =>
  typeof value?.value === 'string' ? value.value : otherwise;
const truth = (value: Value | undefined) => value?.__bool__().value ?? false;

function listOf(value: Value, filter: string): readonly Value[] {
  const items = itemsOf(value);
  if (items) return items;
  throw new Error(`${filter}: ${value.type} is not iterable`);
}

/** `a.b.0` of a value. */
function attribute(value: Value, path: string): Value {
  let at: Value = value;
  for (const part of path.split('.')) {
    const held = at.value as unknown;
    const next =
      held instanceof Map
        ? held.get(part)
        : Array.isArray(held) && /^\d+$/.test(part)
          ? held[Number(part)]
          : undefined;
    at = (next as Value | undefined) ?? toValue(undefined);
  }
  return at;
}

const pathOf = (value: Value | undefined) => (value === undefined ? undefined : String(value.value));

function compare(a: Value, b: Value, caseSensitive = false): number {
  const key = ({ value }: Value) =>
    typeof value === 'string' && !caseSensitive ? value.toLowerCase() : value;
  const [x, y] = [key(a), key(b)] as [number, number];
  return x < y ? -1 : x > y ? 1 : 0;
}

const selecting =
  (keep: boolean, byAttribute: boolean): Filter =>
  (value, { args }, context) => {
    const [path, name, ...rest] = byAttribute ? args : [undefined, ...args];
    const items = listOf(value, keep ? 'select' : 'reject').filter((item) => {
      const subject = path === undefined ? item : attribute(item, String(path.value));
      return (
        (name === undefined
          ? truth(subject)
          : context.test(String(name.value), subject, ...(rest as Value[]))) === keep
      );
    });
    return toList(items);
  };

const extreme =
  (sign: number): Filter =>
  (value, given) => {
    const items = listOf(value, 'min');
    const path = pathOf(given.kwargs.get('attribute'));
    const key = (item: Value) => (path === undefined ? item : attribute(item, path));
    const better = (a: Value, b: Value) => (sign * compare(key(b), key(a)) < 0 ? b : a);
    return items.length === 0 ? toValue(undefined) : items.reduce(better);
  };

/** Rounds half to even, as Python does with what a float holds. */
function round(value: number, digits: number): number {
  const scaled = value * 10 ** digits;
  const floor = Math.floor(scaled);
  const rest = scaled - floor;
  const up = rest > 0.5 || (rest === 0.5 && floor % 2 !== 0);
  return (up ? floor + 1 : floor) / 10 ** digits;
}

function float(value: number): Value {
  const result = toValue(0.5);
  (result as { value: unknown }).value = value;
  return result;
}

const method =
  (name: string): Filter =>
  (value) => {
    const result = STRING_METHODS[name]!(pythonText(value));
    return toValue(result);
  };

/** printf-style formatting of %s, %d, %i, %f, %r and %%. */
export function formatted(template: string, values: readonly Value[]): string {
  let next = 0;
  return template.replace(/%(?:\.(\d+))?([sdifr%])/g, (_, digits: string | undefined, kind: string) => {
    if (kind === '%') return '%';
    const value = values[next++];
    if (value === undefined) throw new Error('not enough arguments for format string');
    if (kind === 'f') return Number(value.value).toFixed(digits === undefined ? 6 : Number(digits));
    return kind === 's' || kind === 'r' ? pythonText(value) : String(Math.trunc(Number(value.value)));
  });
}

const ESCAPES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  "'": '&#39;',
  '"': '&#34;',
};
const escaped: Filter = (value) => toValue(pythonText(value).replace(/[&<>'"]/g, (c) => ESCAPES[c]!));

const count: Filter = (value) => {
  if (value.type === 'StringValue') return toValue(Array.from(value.value as string).length);
  return toValue(listOf(value, 'length').length);
};

/** By name. */
export const FILTERS: Readonly<Record<string, Filter>> = {
  count,
  length: count,
  d: (value, args, context) => context.filter('default', value, args),
  default: (value, given) => {
    const otherwise = argument(given, 0, 'default_value') ?? toValue('');
    const falsy = truth(argument(given, 1, 'boolean')) && !truth(value);
    return value.type === 'UndefinedValue' || falsy ? otherwise : value;
  },
  string: (value) => toValue(pythonText(value)),
  trim: (value, given) =>
    toValue(strip(pythonText(value), textOf(argument(given, 0, 'chars'), undefined as never))),
  capitalize: method('capitalize'),
  title: method('title'),
  e: escaped,
  escape: escaped,
  forceescape: escaped,
  list: (value) => toList(listOf(value, 'list')),
  first: (value) => listOf(value, 'first')[0] ?? toValue(undefined),
  last: (value) => listOf(value, 'last').at(-1) ?? toValue(undefined),
  reverse: (value) => {
    const items = [...listOf(value, 'reverse')].reverse();
    return value.type === 'StringValue' ? toValue(items.map((c) => c.value).join('')) : toList(items);
  },
  join: (value, given) => {
    const path = pathOf(argument(given, 1, 'attribute'));
    const items = listOf(value, 'join').map((item) => (path === undefined ? item : attribute(item, path)));
    return toValue(items.map(pythonText).join(textOf(argument(given, 0, 'd'), '')));
  },
  min: extreme(1),
  max: extreme(-1),
  sum: (value, given) => {
    const path = pathOf(argument(given, 0, 'attribute'));
    const items = listOf(value, 'sum').map((item) => (path === undefined ? item : attribute(item, path)));
    return toValue(
      items.reduce((total, item) => total + Number(item.value), numberOf(argument(given, 1, 'start'), 0)),
    );
  },
  unique: (value) => {
    const items = listOf(value, 'unique');
    const keys = items.map((item) => pythonText(item).toLowerCase());
    return toList(items.filter((_, i) => keys.indexOf(keys[i]!) === i));
  },
  batch: (value, given) => {
    const size = Math.max(1, numberOf(argument(given, 0, 'linecount'), 1));
    const fill = argument(given, 1, 'fill_with');
    const items = listOf(value, 'batch');
    const rows = Array.from({ length: Math.ceil(items.length / size) }, (_, i) =>
      items.slice(i * size, (i + 1) * size),
    );
    return toList(rows.map((row) => toList(fill ? [...row, ...Array(size - row.length).fill(fill)] : row)));
  },
  groupby: (value, given) => {
    const path = pathOf(argument(given, 0, 'attribute')) ?? '';
    const sorted = [...listOf(value, 'groupby')].sort((a, b) =>
      compare(attribute(a, path), attribute(b, path)),
    );
    const groups = new Map<unknown, Value[]>();
    for (const item of sorted) {
      const key = attribute(item, path).value;
      groups.set(key, [...(groups.get(key) ?? []), item]);
    }
    return toList([...groups].map(([key, items]) => toTuple([toValue(key), toList(items)])));
  },
  dictsort: (value) => {
    const entries = [...(value.value as Map<string, Value>)].map(
      ([key, each]) => [toValue(key), each] as const,
    );
    return toList(entries.sort(([a], [b]) => compare(a, b)).map((entry) => toTuple(entry)));
  },
  items: (value) => (value.type === 'UndefinedValue' ? toList([]) : undefined),
  select: selecting(true, false),
  reject: selecting(false, false),
  selectattr: selecting(true, true),
  rejectattr: selecting(false, true),
  map: (value, { args, kwargs }, context) => {
    const items = listOf(value, 'map');
    const path = pathOf(kwargs.get('attribute'));
    if (path === undefined) {
      const [name, ...rest] = args;
      return toList(items.map((item) => context.filter(String(name?.value), item, { args: rest, kwargs })));
    }
    const otherwise = kwargs.get('default');
    const found = items.map((item) => attribute(item, path));
    return toList(found.map((each) => (each.type === 'UndefinedValue' ? (otherwise ?? each) : each)));
  },
  round: (value, given) => {
    const digits = numberOf(argument(given, 0, 'precision'), 0);
    const how = textOf(argument(given, 1, 'method'), 'common');
    const at = how === 'ceil' ? Math.ceil : how === 'floor' ? Math.floor : undefined;
    const number = Number(value.value);
    return float(at ? at(number * 10 ** digits) / 10 ** digits : round(number, digits));
  },
  wordcount: (value) => toValue(pythonText(value).match(/[\p{L}\p{N}_]+/gu)?.length ?? 0),
  center: (value, given) =>
    toValue(STRING_METHODS.center!(pythonText(value), numberOf(argument(given, 0, 'width'), 80))),
  format: (value, { args }) => toValue(formatted(pythonText(value), args)),
  truncate: (value, given) => {
    const text = Array.from(pythonText(value));
    const length = numberOf(argument(given, 0, 'length'), 255);
    const end = textOf(argument(given, 2, 'end'), '...');
    if (text.length <= length + numberOf(argument(given, 3, 'leeway'), 5)) return toValue(text.join(''));
    const cut = text.slice(0, Math.max(0, length - end.length)).join('');
    return toValue((truth(argument(given, 1, 'killwords')) ? cut : cut.replace(/ [^ ]*$/, '')) + end);
  },
  urlencode: (value) => toValue(encodeURIComponent(pythonText(value)).replaceAll('%2F', '/')),
};

type Test = (a: Value, b?: Value) => boolean;
const order =
  (holds: (sign: number) => boolean): Test =>
  (a, b) =>
    b !== undefined && holds(compare(a, b, true));
const contains = (a: Value, b?: Value) =>
  b?.type === 'StringValue'
    ? (b.value as string).includes(String(a.value))
    : (b ? (itemsOf(b) ?? []) : []).some((item) => item.value === a.value);

/** By name, for `is` and the filters that take one. */
export const TESTS: Readonly<Record<string, Test>> = {
  '==': (a, b) => a.value === b?.value,
  '!=': (a, b) => a.value !== b?.value,
  ne: (a, b) => a.value !== b?.value,
  sameas: (a, b) => a.value === b?.value,
  lt: order((sign) => sign < 0),
  le: order((sign) => sign <= 0),
  gt: order((sign) => sign > 0),
  ge: order((sign) => sign >= 0),
  in: contains,
  float: (a) => a.type === 'FloatValue',
  divisibleby: (a, b) => Number(a.value) % Number(b?.value) === 0,
};
