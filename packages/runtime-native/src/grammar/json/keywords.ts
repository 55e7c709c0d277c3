/** Keywords of JSON Schema: what each says, and how two schemas that must both hold become one. */
import { CflowError } from '@cflow/format';

/** A schema that is an object. */
export type SchemaObject = Readonly<Record<string, unknown>>;
/** Any schema: true allows everything, false nothing. */
export type Schema = SchemaObject | boolean;

/** Types of JSON, and the keywords that say something about values of each. */
export const TYPES = {
  object: ['properties', 'required', 'additionalProperties', 'minProperties', 'maxProperties'],
  array: ['prefixItems', 'items', 'minItems', 'maxItems'],
  string: ['pattern', 'format', 'minLength', 'maxLength'],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'],
  integer: [],
  boolean: [],
  null: [],
} as const satisfies Record<string, readonly string[]>;
/** A type of JSON. */
export type TypeName = keyof typeof TYPES;
export const TYPE_NAMES = Object.keys(TYPES) as TypeName[];

/** Keywords that describe and do not restrict. */
const ANNOTATIONS: ReadonlySet<string> = new Set([
  ...['title', 'description', 'default', 'examples', '$schema', '$id', '$comment', '$defs', 'definitions'],
  ...['deprecated', 'readOnly', 'writeOnly', 'discriminator'],
]);
/** Keywords that may be there as long as they restrict nothing. */
const HARMLESS: Readonly<Record<string, unknown>> = {
  uniqueItems: false,
  unevaluatedProperties: false,
  unevaluatedItems: false,
  nullable: false,
};
const KNOWN: ReadonlySet<string> = new Set([
  ...Object.values(TYPES).flat(),
  ...['type', 'const', 'enum', '$ref', 'allOf', 'anyOf', 'oneOf'],
]);

/** Refuses what cannot be kept, so that nothing is dropped silently. */
export function unsupported(problem: string, path: string, remedy?: string): never {
  throw new CflowError('UNSUPPORTED', `JSON schema: ${problem}`, { field: path, remedy });
}

/** Refuses what is no schema at all. */
export function wrongSchema(problem: string, field: string): never {
  throw new CflowError('USAGE', `JSON schema: ${problem}`, { field });
}

/** A length or count of a schema. */
export function countOf(value: unknown, otherwise: number, path: string): number {
  if (value === undefined) return otherwise;
  if (Number.isInteger(value) && (value as number) >= 0) return value as number;
  return wrongSchema(`${JSON.stringify(value)} is not a whole number from 0`, path);
}

/** The keywords of a schema that restrict something. @throws CflowError UNSUPPORTED for others than those known */
export function restricting(schema: SchemaObject, path: string): SchemaObject {
  const kept = Object.entries(schema).filter(([name, value]) => {
    if (ANNOTATIONS.has(name) || name.startsWith('x-')) return false;
    if (Object.hasOwn(HARMLESS, name) && HARMLESS[name] === value) return false;
    if (KNOWN.has(name)) return true;
    return unsupported(
      `the keyword ${JSON.stringify(name)} is not supported`,
      path,
      `supported are ${[...KNOWN].join(', ')}`,
    );
  });
  return Object.fromEntries(kept);
}

/** Types that a schema allows: those it names, else those that its keywords are about, else all. */
export function typesOf(schema: SchemaObject, path: string): readonly TypeName[] {
  if (schema.type !== undefined) {
    const names = [schema.type].flat();
    const unknown = names.find((name) => !TYPE_NAMES.includes(name as TypeName));
    if (unknown !== undefined || names.length === 0)
      throw new CflowError('USAGE', `JSON schema: ${JSON.stringify(unknown)} is not a type`, {
        field: `${path}/type`,
        remedy: `types are ${TYPE_NAMES.join(', ')}`,
      });
    return names as TypeName[];
  }
  const implied = TYPE_NAMES.filter((name) => TYPES[name].some((keyword) => schema[keyword] !== undefined));
  return implied.length > 0 ? implied : TYPE_NAMES.filter((name) => name !== 'integer');
}

type Merge = (a: never, b: never, merge: MergeSchemas, path: string) => unknown;
type MergeSchemas = (a: Schema, b: Schema, path: string) => Schema;
const larger: Merge = (a: number, b: number) => Math.max(a, b);
const smaller: Merge = (a: number, b: number) => Math.min(a, b);
const same = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);

/** How a keyword that both schemas have becomes one. */
const MERGES: Readonly<Record<string, Merge>> = {
  type: (a: unknown, b: unknown) => commonTypes([a].flat() as string[], [b].flat() as string[]),
  required: (a: string[], b: string[]) => [...new Set([...a, ...b])],
  enum: (a: unknown[], b: unknown[]) => a.filter((value) => b.some((other) => same(value, other))),
  ...{
    minimum: larger,
    exclusiveMinimum: larger,
    minLength: larger,
    minItems: larger,
    minProperties: larger,
  },
  ...{ maximum: smaller, exclusiveMaximum: smaller, maxLength: smaller, maxItems: smaller },
  maxProperties: smaller,
  items: (a: Schema, b: Schema, merge: MergeSchemas, path: string) => merge(a, b, `${path}/items`),
};

function commonTypes(a: readonly string[], b: readonly string[]): string[] {
  const has = (names: readonly string[], name: string) =>
    names.includes(name) || (name === 'integer' && names.includes('number'));
  return [...new Set([...a, ...b])].filter((name) => has(a, name) && has(b, name));
}

/** Two schemas of which both must hold, neither with $ref. @throws CflowError UNSUPPORTED */
export function merged(a: SchemaObject, b: SchemaObject, path: string, merge: MergeSchemas): SchemaObject {
  const out = new Map<string, unknown>(Object.entries(a));
  for (const [name, value] of Object.entries(b)) {
    const before = out.get(name);
    if (before === undefined || same(before, value)) out.set(name, value);
    else if (MERGES[name]) out.set(name, MERGES[name](before as never, value as never, merge, path));
    else if (name !== 'properties' && name !== 'additionalProperties')
      unsupported(`two different ${name} hold at once`, path, 'write one schema that says both');
  }
  const tuple = (schema: SchemaObject) => schema.prefixItems !== undefined || schema.items !== undefined;
  if (tuple(a) && tuple(b) && (a.prefixItems !== undefined || b.prefixItems !== undefined))
    unsupported('two descriptions of items hold at once', path, 'write one schema that says both');
  const objects = mergedProperties(a, b, path, merge);
  return { ...Object.fromEntries(out), ...objects };
}

/** A name that only one schema describes is, for the other, an additional property. */
function mergedProperties(a: SchemaObject, b: SchemaObject, path: string, merge: MergeSchemas): SchemaObject {
  const named = (schema: SchemaObject) =>
    new Map(Object.entries((schema.properties ?? {}) as Record<string, Schema>));
  const [first, second] = [named(a), named(b)];
  const others = (schema: SchemaObject) => (schema.additionalProperties ?? true) as Schema;
  const names = [...new Set([...first.keys(), ...second.keys()])];
  const properties = names.map((name) => [
    name,
    merge(first.get(name) ?? others(a), second.get(name) ?? others(b), `${path}/properties/${name}`),
  ]);
  const open = a.additionalProperties === undefined && b.additionalProperties === undefined;
  return {
    ...(names.length > 0 && { properties: Object.fromEntries(properties) }),
    ...(!open && { additionalProperties: merge(others(a), others(b), `${path}/additionalProperties`) }),
  };
}
