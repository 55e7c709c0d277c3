/** JSON schemas as grammars of the JSON texts that they allow. */
import { CflowError } from '@cflow/format';
import {
  chars,
  choice,
  EMPTY,
  type Grammar,
  NEVER,
  type Node,
  pruned,
  type Range,
  repeat,
  rule,
  sequence,
  text,
} from '../grammar.js';
import { arrayNode, objectNode, type Parts } from './containers.js';
import {
  countOf,
  merged,
  restricting,
  type Schema,
  type SchemaObject,
  type TypeName,
  typesOf,
  unsupported,
  wrongSchema,
} from './keywords.js';
import { NUMBER, numberNode } from './numbers.js';
import { FORMATS, patternNode, stringNode } from './strings.js';

/** Characters of a schema, schemas within schemas, and schemas in all once references are followed. */
const MAX_CHARACTERS = 1 << 20;
const MAX_DEPTH = 64;
const MAX_SCHEMAS = 20_000;

/** Between tokens, as models write it: nothing, a space, or a line end with an indent. */
const SPACE = choice(
  EMPTY,
  text(' '),
  sequence(text('\n'), repeat(chars([0x20, 0x20] satisfies Range), 0, 20)),
);

const JSON_RULES: readonly (readonly [string, Node])[] = (() => {
  const ws = rule('ws');
  const list = (item: Node) => choice(EMPTY, sequence(item, repeat(sequence(ws, text(','), ws, item), 0)));
  const entry = sequence(rule('string'), ws, text(':'), ws, rule('value'));
  return [
    ['ws', SPACE],
    ['value', choice(...['object', 'array', 'string', 'number', 'boolean', 'null'].map(rule))],
    ['object', sequence(text('{'), ws, list(entry), ws, text('}'))],
    ['array', sequence(text('['), ws, list(rule('value')), ws, text(']'))],
    ['string', stringNode()],
    ['number', NUMBER],
    ['boolean', choice(text('true'), text('false'))],
    ['null', text('null')],
  ];
})();

/**
 * The JSON texts that a schema allows. What is generated always validates; not everything that validates can be generated:
 * properties come in the order of the schema, and only those that it names unless `additionalProperties` says more.
 * @throws CflowError USAGE for what is no schema, UNSUPPORTED for keywords that cannot be kept, LIMIT_EXCEEDED
 */
export function schemaGrammar(given: unknown): Grammar {
  const schema = plainJson(given);
  const grammar = pruned(new SchemaConverter(schema).grammar());
  return grammar ?? unsupported('no JSON text satisfies it', '#');
}

/** A schema without what JSON cannot say. */
function plainJson(given: unknown): Schema {
  let json: string | undefined;
  try {
    json = JSON.stringify(given);
  } catch (cause) {
    throw new CflowError('USAGE', `JSON schema: ${(cause as Error).message.split('\n')[0]}`, { cause });
  }
  if (json !== undefined && json.length > MAX_CHARACTERS)
    throw new CflowError('LIMIT_EXCEEDED', `JSON schema: ${json.length} characters`, {
      limit: MAX_CHARACTERS,
    });
  const schema: unknown = json === undefined ? undefined : JSON.parse(json);
  return asSchema(schema, '#');
}

function asSchema(value: unknown, path: string): Schema {
  if (typeof value === 'boolean') return value;
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as SchemaObject;
  throw new CflowError('USAGE', 'JSON schema: neither an object nor true or false', { field: path, value });
}

class SchemaConverter {
  readonly #root: Schema;
  readonly #rules = new Map<string, Node>(JSON_RULES);
  #schemas = 0;

  constructor(root: Schema) {
    this.#root = root;
  }

  grammar(): Grammar {
    const root = this.#reference('#', '#', 0);
    this.#rules.set('text', sequence(rule('ws'), root));
    return { root: 'text', rules: this.#rules };
  }

  #node(value: unknown, path: string, depth: number): Node {
    this.#count(path, depth);
    const given = asSchema(value, path);
    if (typeof given === 'boolean') return given ? rule('value') : NEVER;
    const schema = restricting(given, path);
    const { $ref, allOf, anyOf, oneOf, ...rest } = schema;
    if ($ref !== undefined && Object.keys(schema).length === 1) return this.#reference($ref, path, depth);
    if ($ref !== undefined || allOf !== undefined) {
      const { $ref: _, allOf: __, ...own } = schema;
      const parts = [...($ref === undefined ? [] : [{ $ref }]), ...schemas(allOf ?? [], `${path}/allOf`)];
      const whole = parts.reduce<Schema>((all, part) => this.#both(all, part, path, depth + 1), own);
      return this.#node(whole, path, depth + 1);
    }
    if (anyOf !== undefined || oneOf !== undefined) {
      const name = anyOf === undefined ? 'oneOf' : 'anyOf';
      const others = anyOf === undefined || oneOf === undefined ? rest : { ...rest, oneOf };
      const branches = schemas(schema[name], `${path}/${name}`).map((branch) =>
        Object.keys(others).length === 0 ? branch : this.#both(others, branch, path, depth + 1),
      );
      if (name === 'oneOf') this.#refuseOverlap(branches, `${path}/oneOf`, depth);
      return choice(...branches.map((branch, i) => this.#node(branch, `${path}/${name}/${i}`, depth + 1)));
    }
    return this.#typed(schema, path, depth);
  }

  #typed(schema: SchemaObject, path: string, depth: number): Node {
    const types = typesOf(schema, path);
    const values = schema.const === undefined ? schema.enum : [schema.const];
    if (values !== undefined) {
      if (!Array.isArray(values)) wrongSchema('an enum is an array', `${path}/enum`);
      const other = Object.keys(schema).find((name) => !['type', 'const', 'enum'].includes(name));
      if (other !== undefined) unsupported(`${other} beside const or enum`, path, `leave ${other} out`);
      const both = schema.const !== undefined && schema.enum !== undefined;
      const listed = (value: unknown) =>
        !both || (schema.enum as unknown[]).some((each) => JSON.stringify(each) === JSON.stringify(value));
      const fitting = values.filter((value) => listed(value) && types.some((type) => hasType(value, type)));
      return choice(...fitting.map((value) => constant(value)));
    }
    return choice(...types.map((type) => this.#ofType(type, schema, path, depth)));
  }

  #ofType(type: TypeName, schema: SchemaObject, path: string, depth: number): Node {
    switch (type) {
      case 'null':
      case 'boolean':
        return rule(type);
      case 'integer':
      case 'number':
        return numeric(schema, type === 'integer', path);
      case 'string':
        return string(schema, path);
      case 'object':
        return objectNode(schema, path, this.#parts(depth));
      case 'array':
        return arrayNode(schema, path, this.#parts(depth));
    }
  }

  /** What containers need: rules for what they hold. */
  #parts(depth: number): Parts {
    return {
      node: (schema, path) => this.#node(schema, path, depth + 1),
      rule: (path, node) => {
        let name = path;
        for (let i = 2; this.#rules.has(name); i++) name = `${path}#${i}`;
        this.#rules.set(name, node);
        return rule(name);
      },
    };
  }

  #reference($ref: unknown, path: string, depth: number): Node {
    const name = `$ref ${$ref}`;
    if (!this.#rules.has(name)) {
      const target = this.#resolve($ref, path);
      this.#rules.set(name, NEVER);
      this.#rules.set(name, this.#node(target, String($ref), depth + 1));
    }
    return rule(name);
  }

  #resolve($ref: unknown, path: string): Schema {
    if (typeof $ref !== 'string' || !/^#(?:\/|$)/.test($ref))
      unsupported(`$ref ${JSON.stringify($ref)} leads elsewhere`, `${path}/$ref`, 'refer to #/$defs/NAME');
    let at: unknown = this.#root;
    for (const part of ($ref as string).split('/').slice(1)) {
      const key = decodePointer(part);
      at =
        typeof at === 'object' && at !== null && Object.hasOwn(at, key)
          ? (at as SchemaObject)[key]
          : undefined;
    }
    if (at === undefined) wrongSchema(`$ref ${JSON.stringify($ref)} leads nowhere`, `${path}/$ref`);
    return asSchema(at, $ref as string);
  }

  /** One schema for two that must both hold. */
  #both(a: Schema, b: Schema, path: string, depth: number): Schema {
    this.#count(path, depth);
    if (typeof a === 'boolean') return a ? b : false;
    if (typeof b === 'boolean') return b ? a : false;
    const [first, second] = [this.#flat(a, path, depth), this.#flat(b, path, depth)];
    return merged(first, second, path, (x, y, at) =>
      this.#both(asSchema(x, at), asSchema(y, at), at, depth + 1),
    );
  }

  /** The same schema without a reference at its top. */
  #flat(schema: SchemaObject, path: string, depth: number): SchemaObject {
    const { $ref, ...rest } = restricting(schema, path);
    if ($ref === undefined) return rest;
    const whole = this.#both(this.#resolve($ref, path), rest, path, depth + 1);
    return typeof whole === 'boolean' ? (whole ? {} : { enum: [] }) : whole;
  }

  #refuseOverlap(branches: readonly Schema[], path: string, depth: number): void {
    branches.forEach((a, i) => {
      branches.slice(i + 1).forEach((b, j) => {
        if (!this.#disjoint(a, b, path, depth))
          unsupported(
            `branches ${i} and ${i + 1 + j} may both match`,
            path,
            'use anyOf, or a const property that differs',
          );
      });
    });
  }

  #disjoint(a: unknown, b: unknown, path: string, depth: number): boolean {
    this.#count(path, depth);
    if (a === false || b === false) return true;
    if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
    const [first, second] = [
      this.#flat(a as SchemaObject, path, depth),
      this.#flat(b as SchemaObject, path, depth),
    ];
    const [valuesA, valuesB] = [valuesOf(first), valuesOf(second)];
    if (valuesA && valuesB) return !valuesA.some((value) => valuesB.includes(value));
    const known = (schema: SchemaObject) => schema.type !== undefined || valuesOf(schema) !== undefined;
    if (!known(first) || !known(second)) return false;
    const shared = new Set(kinds(first, path).filter((kind) => kinds(second, path).includes(kind)));
    if (shared.size === 0) return true;
    if (shared.size > 1 || !shared.has('object')) return false;
    const required = (schema: SchemaObject) =>
      Array.isArray(schema.required) ? (schema.required as string[]) : [];
    const property = (schema: SchemaObject, name: string) =>
      (schema.properties as SchemaObject | undefined)?.[name];
    return required(first)
      .filter((name) => required(second).includes(name))
      .some((name) => this.#disjoint(property(first, name), property(second, name), path, depth + 1));
  }

  #count(path: string, depth: number): void {
    this.#schemas++;
    const over =
      depth > MAX_DEPTH
        ? ([`nests more than ${MAX_DEPTH} deep`, MAX_DEPTH] as const)
        : this.#schemas > MAX_SCHEMAS
          ? ([`has more than ${MAX_SCHEMAS} schemas`, MAX_SCHEMAS] as const)
          : undefined;
    if (over)
      throw new CflowError('LIMIT_EXCEEDED', `JSON schema: ${over[0]}`, {
        field: path.slice(0, 80),
        limit: over[1],
      });
  }
}

function schemas(value: unknown, path: string): Schema[] {
  if (!Array.isArray(value) || value.length === 0) wrongSchema('not an array of schemas', path);
  return (value as unknown[]).map((each, i) => asSchema(each, `${path}/${i}`));
}

function decodePointer(part: string): string {
  try {
    return decodeURIComponent(part).replaceAll('~1', '/').replaceAll('~0', '~');
  } catch {
    return part;
  }
}

/** Values of const or enum as JSON; undefined without either. */
function valuesOf(schema: SchemaObject): string[] | undefined {
  const values = schema.const === undefined ? schema.enum : [schema.const];
  return Array.isArray(values) ? values.map((value) => JSON.stringify(value)) : undefined;
}

/** Types with integer counted as number. */
function kinds(schema: SchemaObject, path: string): string[] {
  const types = valuesOf(schema) ? valueTypes(schema) : typesOf(schema, path);
  return types.map((type) => (type === 'integer' ? 'number' : type));
}

const valueTypes = (schema: SchemaObject) =>
  valuesOf(schema)!.map((json) => {
    const value: unknown = JSON.parse(json);
    return value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value;
  });

function hasType(value: unknown, type: TypeName): boolean {
  if (type === 'integer') return Number.isInteger(value);
  if (type === 'null') return value === null;
  if (type === 'array') return Array.isArray(value);
  return typeof value === type && (type !== 'object' || (value !== null && !Array.isArray(value)));
}

/** One value, with the spaces of others. */
function constant(value: unknown): Node {
  const ws = rule('ws');
  const list = (open: string, items: readonly Node[], close: string) =>
    sequence(
      ...[text(open), ws, ...items.flatMap((item, i) => (i === 0 ? [item] : [ws, text(','), ws, item])), ws],
      text(close),
    );
  if (Array.isArray(value)) return list('[', value.map(constant), ']');
  if (typeof value !== 'object' || value === null) return text(JSON.stringify(value));
  const entries = Object.entries(value).map(([name, each]) =>
    sequence(text(JSON.stringify(name)), ws, text(':'), ws, constant(each)),
  );
  return list('{', entries, '}');
}

const BOUNDS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'] as const;

function numeric(schema: SchemaObject, integer: boolean, path: string): Node {
  const bounds = Object.fromEntries(BOUNDS.map((name) => [name, schema[name]]));
  const [name, value] =
    Object.entries(bounds).find(([, each]) => each !== undefined && typeof each !== 'number') ?? [];
  if (name !== undefined) wrongSchema(`${JSON.stringify(value)} is not a number`, `${path}/${name}`);
  const node = numberNode(bounds as Parameters<typeof numberNode>[0], integer);
  return node ?? unsupported('a bound has more than 15 digits', path, 'leave it out, or use a smaller one');
}

function string(schema: SchemaObject, path: string): Node {
  const { pattern, format, minLength, maxLength } = schema;
  const says = [pattern, format, minLength ?? maxLength].filter((each) => each !== undefined);
  if (says.length > 1)
    unsupported('two of pattern, format and length hold at once', path, 'say all of it in the pattern');
  if (pattern !== undefined) {
    if (typeof pattern !== 'string') wrongSchema('a pattern is a text', `${path}/pattern`);
    return patternNode(pattern as string, 'search', `${path}/pattern`);
  }
  if (format === undefined) {
    const min = countOf(minLength, 0, `${path}/minLength`);
    const max = countOf(maxLength, Number.POSITIVE_INFINITY, `${path}/maxLength`);
    if (minLength === undefined && maxLength === undefined) return rule('string');
    return max < min ? NEVER : stringNode(min, max);
  }
  const known = FORMATS.get(format as string);
  if (known === undefined)
    unsupported(
      `the format ${JSON.stringify(format)} is not known`,
      path,
      `known are ${[...FORMATS.keys()].join(', ')}`,
    );
  return patternNode(known!, 'whole', `${path}/format`);
}
