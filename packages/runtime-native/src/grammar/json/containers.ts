/** Objects and arrays of JSON as grammars. */
import { choice, EMPTY, NEVER, type Node, repeat, rule, sequence, text } from '../grammar.js';
import { countOf, type Schema, type SchemaObject, unsupported, wrongSchema } from './keywords.js';
import { otherNameNode } from './strings.js';

/** How containers get at what they hold. */
export interface Parts {
  readonly node: (schema: unknown, path: string) => Node;
  /** A new rule, named after its place in the schema. */
  readonly rule: (path: string, node: Node) => Node;
}

const WS = rule('ws');
const COMMA = sequence(WS, text(','), WS);
const entry = (key: Node, value: Node) => sequence(key, WS, text(':'), WS, value);

interface Property {
  readonly name: string;
  readonly schema: Schema;
  readonly required: boolean;
}

/** Properties in the order of the schema, each at most once, then additional ones. */
export function objectNode(schema: SchemaObject, path: string, parts: Parts): Node {
  const properties = propertiesOf(schema, path);
  const free = properties.length === 0 && schema.additionalProperties === undefined;
  const others = (free ? true : (schema.additionalProperties ?? false)) as Schema;
  const { most, mayBeEmpty } = counts(schema, properties, others !== false, path);
  const other =
    others === false
      ? NEVER
      : parts.rule(
          `${path}/additionalProperties`,
          entry(
            otherNameNode(properties.map(({ name }) => name)),
            parts.node(others, `${path}/additionalProperties`),
          ),
        );
  const further = most - properties.length;
  // From the end: what may follow a property, and what may stand there as the first one.
  let after = repeat(sequence(COMMA, other), 0, further);
  let first = choice(
    ...(mayBeEmpty ? [EMPTY] : []),
    ...(further > 0 ? [sequence(other, repeat(sequence(COMMA, other), 0, further - 1))] : []),
  );
  for (const { name, schema: value, required } of [...properties].reverse()) {
    const at = `${path}/properties/${name}`;
    const property = parts.rule(at, entry(text(JSON.stringify(name)), parts.node(value, at)));
    const rest = parts.rule(`${at}/after`, after);
    after = choice(sequence(COMMA, property, rest), ...(required ? [] : [rest]));
    first = choice(sequence(property, rest), ...(required ? [] : [parts.rule(`${at}/first`, first)]));
  }
  return sequence(text('{'), WS, first, WS, text('}'));
}

/** Characters of the name of a property. */
const MAX_NAME = 512;

function propertiesOf(schema: SchemaObject, path: string): Property[] {
  const { properties = {}, required = [], additionalProperties = true } = schema;
  if (typeof properties !== 'object' || properties === null || Array.isArray(properties))
    wrongSchema('properties are an object', `${path}/properties`);
  if (!Array.isArray(required) || required.some((name) => typeof name !== 'string'))
    wrongSchema('required is an array of names', `${path}/required`);
  const named = Object.entries(properties as Record<string, Schema>);
  const missing = (required as string[]).filter((name) => !Object.hasOwn(properties as object, name));
  const all = [
    ...named,
    ...[...new Set(missing)].map((name) => [name, additionalProperties as Schema] as const),
  ];
  const long = all.find(([name]) => name.length > MAX_NAME);
  if (long) unsupported(`a name of ${long[0].length} characters`, path, `names have at most ${MAX_NAME}`);
  return all.map(([name, value]) => ({
    name,
    schema: value,
    required: (required as string[]).includes(name),
  }));
}

/** How many properties there may be. Two additional ones may have one name, and count as one. */
function counts(
  schema: SchemaObject,
  properties: readonly Property[],
  open: boolean,
  path: string,
): { readonly most: number; readonly mayBeEmpty: boolean } {
  const least = countOf(schema.minProperties, 0, `${path}/minProperties`);
  const limit = countOf(schema.maxProperties, Number.POSITIVE_INFINITY, `${path}/maxProperties`);
  const required = properties.filter((each) => each.required).length;
  if (least > Math.max(1, required))
    unsupported(
      `minProperties ${least} is above 1 and above what is required`,
      path,
      'name them in required',
    );
  const most = open ? Math.max(limit, properties.length) : properties.length;
  if (limit < properties.length)
    unsupported(`maxProperties ${limit} is below the number of properties`, path, 'leave it out');
  return { most, mayBeEmpty: least === 0 || required > 0 };
}

/** Items by their place, then any number of further ones. */
export function arrayNode(schema: SchemaObject, path: string, parts: Parts): Node {
  const { prefixItems = [], items } = schema;
  if (!Array.isArray(prefixItems)) wrongSchema('prefixItems is an array', `${path}/prefixItems`);
  if (Array.isArray(items)) unsupported('items is an array', `${path}/items`, 'use prefixItems');
  const min = countOf(schema.minItems, 0, `${path}/minItems`);
  const max = countOf(schema.maxItems, Number.POSITIVE_INFINITY, `${path}/maxItems`);
  if (max < min) return NEVER;
  const places = (prefixItems as unknown[]).slice(0, max === Number.POSITIVE_INFINITY ? undefined : max);
  const further = items ?? (places.length === 0 || min > places.length);
  const item = further === false ? NEVER : parts.rule(`${path}/items`, parts.node(further, `${path}/items`));
  const most = max - places.length;
  const least = Math.max(0, min - places.length);
  let rest = places.length > 0 ? repeat(sequence(COMMA, item), least, most) : listOf(item, least, most);
  for (const [i, place] of [...places.entries()].reverse()) {
    const at = `${path}/prefixItems/${i}`;
    const node = parts.rule(at, parts.node(place, at));
    const here = sequence(...(i > 0 ? [COMMA] : []), node, parts.rule(`${at}/after`, rest));
    rest = i < min ? here : choice(EMPTY, here);
  }
  return sequence(text('['), WS, rest, WS, text(']'));
}

function listOf(item: Node, min: number, max: number): Node {
  if (max === 0) return EMPTY;
  const some = sequence(item, repeat(sequence(COMMA, item), Math.max(0, min - 1), max - 1));
  return min === 0 ? choice(EMPTY, some) : some;
}
