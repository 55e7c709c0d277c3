/**
 * jinja2 as transformers uses it: the library's interpreter with what it lacks. Nodes that it would evaluate otherwise are
 * taken before it sees them; values that are known already go to it as constants, so that nothing is evaluated twice.
 */
import { type Arguments, type Context, FILTERS, formatted, TESTS } from './filters.js';
import { Environment, Interpreter, type Node, type Scope, type Value } from './library.js';
import { programOf, WITH } from './source.js';
import { strftime } from './strftime.js';
import { STRING_METHODS } from './strings.js';
import { itemsOf, pythonText, toList, toTuple, toValue } from './values.js';

/** What the template itself raised: it refuses the messages. */
export class TemplateRefusal extends Error {}

/** Elements of a `range` and of a repeated text: what no template needs. */
const MAX_ITEMS = 1_000_000;

/** A template, parsed. @throws Error for one that does not parse */
export class JinjaTemplate {
  readonly #program: Node;

  constructor(source: string) {
    this.#program = programOf(source);
    printExpressions(this.#program);
  }

  /** @param now for tests: the time of strftime_now */
  render(variables: Readonly<Record<string, unknown>>, now = new Date()): string {
    const environment = new Environment();
    for (const [name, value] of Object.entries({ ...globals(now), ...variables }))
      environment.set(name, value);
    const result = new Python(environment).run(this.#program);
    return result.value as string;
  }

  /** Filters and tests that neither jinja2's rows here nor the library have. */
  unknown(): string[] {
    return [...new Set(unknownNames(this.#program))];
  }
}

function globals(now: Date): Record<string, unknown> {
  return {
    true: true,
    false: false,
    none: null,
    True: true,
    False: false,
    None: null,
    raise_exception: (message: unknown) => {
      throw new TemplateRefusal(String(message));
    },
    strftime_now: (format: string) => strftime(now, format),
    range: (first: number, second?: number, step = 1) => {
      const [from, to] = second === undefined ? [0, first] : [first, second];
      if (step === 0) throw new Error('range() step must not be zero');
      const length = Math.max(0, Math.ceil((to - from) / step));
      if (length > MAX_ITEMS) throw new Error(`range() of ${length} numbers; at most ${MAX_ITEMS}`);
      return Array.from({ length }, (_, i) => from + i * step);
    },
  };
}

/** The values of a block that are expressions, not statements. */
const STATEMENTS = new Set([
  ...['If', 'For', 'Set', 'Macro', 'CallStatement', 'FilterStatement', 'Break', 'Continue'],
  ...['StringLiteral', 'Comment', 'Print'],
]);

/** Marks expressions whose value is printed: Python writes None, True and lists in its own way. */
function printExpressions(node: Node): void {
  for (const field of ['body', 'alternate', 'defaultBlock']) {
    const block = node[field];
    if (!Array.isArray(block)) continue;
    for (const [i, each] of (block as Node[]).entries()) {
      if (STATEMENTS.has(each.type)) printExpressions(each);
      else block[i] = { type: 'Print', value: each };
    }
  }
}

class Python extends Interpreter implements Context {
  override evaluate(node: Node | undefined, environment: Scope): Value {
    switch (node?.type) {
      case 'Constant':
        return node.value as Value;
      case 'Print':
        return toValue(pythonText(this.#value(node.value, environment)));
      case 'FilterExpression':
        return this.#filterNode(node.filter as Node, this.#value(node.operand, environment), environment);
      case 'FilterStatement': {
        const plain = { ...node, filter: { type: 'Identifier', value: 'safe' } };
        const text = super.evaluate(plain, environment);
        return this.#filterNode(node.filter as Node, text, environment);
      }
      case 'TestExpression': {
        const name = (node.test as Node).value as string;
        if (!Object.hasOwn(TESTS, name)) break;
        return toValue(TESTS[name]!(this.#value(node.operand, environment)) !== Boolean(node.negate));
      }
      case 'CallExpression':
        return this.#call(node, environment);
      case 'BinaryExpression':
        return this.#binary(node, environment);
      case 'For':
        return this.#for(node, environment);
    }
    return super.evaluate(node, environment);
  }

  filter(name: string, value: Value, given: Arguments): Value {
    const own = Object.hasOwn(FILTERS, name) ? FILTERS[name]!(value, given, this) : undefined;
    if (own !== undefined) return own;
    const constants = given.args.map(constant);
    const args = [
      ...constants,
      ...[...given.kwargs].map(([key, each]) => ({
        type: 'KeywordArgumentExpression',
        key: { type: 'Identifier', value: key },
        value: constant(each),
      })),
    ];
    const callee = { type: 'Identifier', value: name };
    const filter = args.length === 0 ? callee : { type: 'CallExpression', callee, args };
    const node = { type: 'FilterExpression', operand: constant(value), filter };
    return super.evaluate(node, this.global);
  }

  test(name: string, ...values: Value[]): boolean {
    const test = Object.hasOwn(TESTS, name) ? TESTS[name] : this.global.tests.get(name);
    if (!test) throw new Error(`Unknown test: ${name}`);
    return test(...values);
  }

  #value(node: unknown, environment: Scope): Value {
    return this.evaluate(node as Node | undefined, environment);
  }

  #arguments(nodes: readonly Node[], environment: Scope): Arguments {
    const args: Value[] = [];
    const kwargs = new Map<string, Value>();
    for (const node of nodes) {
      if (node.type === 'KeywordArgumentExpression') {
        kwargs.set((node.key as Node).value as string, this.#value(node.value, environment));
      } else if (node.type === 'SpreadExpression') {
        args.push(...(itemsOf(this.#value(node.argument, environment)) ?? []));
      } else args.push(this.#value(node, environment));
    }
    return { args, kwargs };
  }

  #filterNode(filter: Node, value: Value, environment: Scope): Value {
    const called = filter.type === 'CallExpression';
    const name = (called ? (filter.callee as Node) : filter).value as string;
    if (!called) return this.filter(name, value, { args: [], kwargs: new Map() });
    if (Object.hasOwn(FILTERS, name))
      return this.filter(name, value, this.#arguments(filter.args as Node[], environment));
    const node = { type: 'FilterExpression', operand: constant(value), filter };
    return super.evaluate(node, environment);
  }

  /** Methods of texts, and `loop.cycle`. */
  #call(node: Node, environment: Scope): Value {
    const callee = node.callee as Node;
    const property = callee.property as Node | undefined;
    const plain = () => super.evaluate(node, environment);
    if (callee.type !== 'MemberExpression' || callee.computed) return plain();
    const object = this.#value(callee.object, environment);
    const name = property!.value as string;
    const args = () => this.#arguments(node.args as Node[], environment).args;
    if (object.type === 'StringValue' && name === 'format')
      return toValue(format(object.value as string, args()));
    if (object.type === 'StringValue' && Object.hasOwn(STRING_METHODS, name)) {
      const result = STRING_METHODS[name]!(object.value as string, ...args().map(plainValue));
      if (result === undefined) throw new Error(`'str'.${name}: substring not found`);
      return name.endsWith('partition') ? toTuple((result as string[]).map(toValue)) : toValue(result);
    }
    if ((callee.object as Node).value === 'loop' && name === 'cycle') {
      const values = args();
      const index = (object.value as Map<string, Value>).get('index0')!.value as number;
      return values[index % values.length] ?? toValue(undefined);
    }
    if (object.type === 'ArrayValue' && (name === 'index' || name === 'count')) {
      const same = (object.value as Value[]).map((item) => item.value === args()[0]?.value);
      return toValue(name === 'count' ? same.filter(Boolean).length : same.indexOf(true));
    }
    const known = { ...node, callee: { ...callee, object: constant(object) } };
    return super.evaluate(known, environment);
  }

  /** `~`, and `*` and `%` of a text. */
  #binary(node: Node, environment: Scope): Value {
    const operator = (node.operator as Node).value;
    const plain = () => super.evaluate(node, environment);
    if (operator !== '~' && operator !== '*' && operator !== '%') return plain();
    const [left, right] = [this.#value(node.left, environment), this.#value(node.right, environment)];
    if (operator === '~') return toValue(pythonText(left) + pythonText(right));
    if (operator === '%' && left.type === 'StringValue') {
      const values = right.type === 'TupleValue' ? (right.value as Value[]) : [right];
      return toValue(formatted(left.value as string, values));
    }
    if (operator === '*' && left.type === 'StringValue') {
      const times = Math.max(0, Number(right.value));
      if (times * (left.value as string).length > MAX_ITEMS)
        throw new Error(`a text repeated to over ${MAX_ITEMS} characters`);
      return toValue((left.value as string).repeat(times));
    }
    const known = { ...node, left: constant(left), right: constant(right) };
    return super.evaluate(known, environment);
  }

  /** Loops over whatever Python iterates over, and `with`. */
  #for(node: Node, environment: Scope): Value {
    const body = (block: unknown, scope: Scope) => super.evaluate({ type: 'Program', body: block }, scope);
    if ((node.loopvar as Node).value === WITH) return body(node.body, new Environment(environment));
    const iterable = node.iterable as Node;
    const selected = iterable.type === 'SelectExpression';
    const value = this.#value(selected ? iterable.lhs : iterable, environment);
    const items = itemsOf(value);
    if (!items) throw new Error(`for: ${pythonText(value)} is not iterable`);
    const list = constant(toList(items));
    const known = { ...node, iterable: selected ? { ...iterable, lhs: list } : list };
    return super.evaluate(known, environment);
  }
}

const constant = (value: Value) => ({ type: 'Constant', value });

function plainValue(value: Value) {
  if (value.type === 'NullValue' || value.type === 'UndefinedValue') return undefined;
  if (Array.isArray(value.value)) return (value.value as Value[]).map(({ value: each }) => String(each));
  return value.value as string | number | boolean;
}

/** `str.format` of {} and {0}. */
function format(template: string, values: readonly Value[]): string {
  let next = 0;
  return template.replace(/\{\{|\}\}|\{(\d*)\}/g, (all, index: string | undefined) => {
    if (index === undefined) return all[0]!;
    const value = values[index === '' ? next++ : Number(index)];
    if (value === undefined) throw new Error('str.format: not enough arguments');
    return pythonText(value);
  });
}

/** Filters and tests that the library has. */
const LIBRARY_FILTERS = new Set([
  ...[
    'safe',
    'tojson',
    'sort',
    'upper',
    'lower',
    'indent',
    'replace',
    'int',
    'float',
    'abs',
    'bool',
    'items',
  ],
  ...['keys', 'values', 'get'],
]);
const LIBRARY_TESTS = new Set([
  ...[
    'boolean',
    'callable',
    'odd',
    'even',
    'false',
    'true',
    'string',
    'number',
    'integer',
    'iterable',
    'mapping',
  ],
  ...['sequence', 'lower', 'upper', 'none', 'defined', 'undefined', 'equalto', 'eq'],
]);

function unknownNames(node: unknown): string[] {
  if (node instanceof Map) return [...node].flatMap(unknownNames);
  if (Array.isArray(node)) return node.flatMap(unknownNames);
  if (typeof node !== 'object' || node === null) return [];
  const { type, filter, test } = node as Node;
  const inner = Object.values(node).flatMap(unknownNames);
  if (type === 'FilterExpression' || type === 'FilterStatement') {
    const { callee, value } = filter as Node;
    const name = ((callee as Node | undefined)?.value ?? value) as string;
    if (!LIBRARY_FILTERS.has(name) && !Object.hasOwn(FILTERS, name)) inner.push(`filter "${name}"`);
  }
  if (type === 'TestExpression') {
    const name = (test as Node).value as string;
    if (!LIBRARY_TESTS.has(name) && !Object.hasOwn(TESTS, name)) inner.push(`test "${name}"`);
  }
  return inner;
}
