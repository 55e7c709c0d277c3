/**
 * What is generated under a JSON schema validates by it: ajv says so. The full run, 1,000 random schemas on the bundled
 * model:
 *
 *     CFLOW_GRAMMAR_SCHEMAS=1000 npx vitest run packages/runtime-native/test/grammar-schema.test.ts
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { convert } from '@cflow/convert';
import { CflowError } from '@cflow/format';
import { Ajv2020 } from 'ajv/dist/2020.js';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { automatonOf } from '../src/grammar/automaton.js';
import { grammarOf } from '../src/grammar/constraint.js';
import { Machine, NOWHERE } from '../src/grammar/machine.js';
import { Model } from '../src/model.js';
import { randomGenerator } from '../src/sampling/random.js';

const SCHEMAS = Number(process.env.CFLOW_GRAMMAR_SCHEMAS ?? 12);
if (SCHEMAS > 100) vi.setConfig({ testTimeout: 3_600_000 });

type Json = Record<string, unknown>;

/** Whether a text validates; formats by other means than those that generate them. */
function validator(schema: unknown): (text: string) => boolean {
  const isDate = (text: string) =>
    !Number.isNaN(Date.parse(text)) && new Date(text).toISOString().startsWith(text.slice(0, 10));
  const ajv = new Ajv2020({
    strict: false,
    formats: {
      date: (text: string) => isDate(text),
      'date-time': (text: string) => !Number.isNaN(Date.parse(text)),
      time: (text: string) => !Number.isNaN(Date.parse(`2000-01-01T${text}`)),
      ipv4: (text: string) => isIPv4(text),
      uri: (text: string) => URL.canParse(text),
      hostname: (text: string) => URL.canParse(`http://x.${text}`),
      email: (text: string) => /^[^@\s]+@[^@\s]+\.[^@\s]+$/.test(text),
      uuid: (text: string) => text.length === 36,
    },
  });
  const validate = ajv.compile(schema as Json);
  return (text) => validate(JSON.parse(text));
}

const bound = fc.oneof(
  fc.integer({ min: -1200, max: 1200 }),
  fc.integer({ min: -99_999, max: 99_999 }).map((n) => n / 1000),
);
const numeric = fc.constantFrom('integer', 'number').chain((type) =>
  fc
    .tuple(
      bound,
      bound,
      fc.constantFrom('minimum', 'exclusiveMinimum', ''),
      fc.constantFrom('maximum', 'exclusiveMaximum', ''),
    )
    .map(
      ([a, b, low, high]): Json => ({
        type,
        ...(low && { [low]: Math.min(a, b) }),
        ...(high && { [high]: Math.max(a, b) + 2 }),
      }),
    ),
);
const leaf: fc.Arbitrary<Json> = fc.oneof(
  numeric,
  fc.constantFrom<Json>(
    { type: 'boolean' },
    { type: 'null' },
    { type: ['boolean', 'null'] },
    { type: 'string', pattern: '^[A-Z][a-z]{2,5}(-\\d{1,3})?$' },
    { type: 'string', pattern: '"|\\\\|\\t' },
    { type: 'string', pattern: '^\\p{Lu}[^a-z]{0,4}$' },
    { type: 'string', pattern: '^(?:\\+\\d{2} )?\\(?\\d{3}\\)?$|^none$' },
    ...['date', 'date-time', 'time', 'ipv4', 'uri', 'hostname', 'email', 'uuid'].map((format) => ({
      type: 'string',
      format,
    })),
  ),
  fc
    .tuple(fc.nat(6), fc.nat(6))
    .map(([min, more]): Json => ({ type: 'string', minLength: min, maxLength: min + more })),
  fc
    .array(
      fc.oneof(
        fc.string({ unit: 'grapheme' }),
        fc.integer(),
        fc.constant(null),
        fc.constant({ 'a"': [1, 'x'] }),
      ),
      {
        minLength: 1,
        maxLength: 4,
      },
    )
    .map((values): Json => ({ enum: values })),
  fc.jsonValue({ maxDepth: 2 }).map((value): Json => ({ const: value })),
);
const name = fc.oneof(
  fc.constantFrom('id', 'name', 'tags', 'na'),
  fc.string({ unit: 'grapheme', maxLength: 6 }),
);

/** Schemas of so many levels, as people write them. */
function schema(levels: number): fc.Arbitrary<Json> {
  if (levels === 0) return leaf;
  const inner = schema(levels - 1);
  const object = fc.dictionary(name, inner, { maxKeys: 4 }).chain((properties) =>
    fc
      .tuple(fc.subarray(Object.keys(properties)), fc.constantFrom(undefined, false, { type: 'integer' }))
      .map(
        ([required, additionalProperties]): Json => ({
          type: 'object',
          properties,
          required,
          ...(additionalProperties !== undefined && { additionalProperties }),
          ...(Object.keys(properties).length === 0 && { additionalProperties: false }),
        }),
      ),
  );
  const array = fc
    .tuple(inner, fc.nat(2), fc.nat(2))
    .map(([items, min, more]): Json => ({ type: 'array', items, minItems: min, maxItems: min + more }));
  const tuple = fc
    .array(inner, { minLength: 1, maxLength: 3 })
    .chain((prefixItems) =>
      fc
        .nat(prefixItems.length)
        .map((minItems): Json => ({ type: 'array', prefixItems, minItems, items: false })),
    );
  const either = fc.array(inner, { minLength: 2, maxLength: 3 }).map((anyOf): Json => ({ anyOf }));
  const tagged = fc.tuple(inner, inner).map(
    ([a, b]): Json => ({
      type: 'object',
      required: ['kind', 'value'],
      oneOf: [
        { properties: { kind: { const: 'a' }, value: a } },
        { properties: { kind: { const: 'b' }, value: b } },
      ],
    }),
  );
  const referred = inner.map(
    (each): Json => ({ allOf: [{ $ref: '#/$defs/whole' }, {}], $defs: {}, ...wrapped(each) }),
  );
  return fc.oneof(leaf, object, object, array, tuple, either, levels === 3 ? referred : tagged);
}
/** A list of a schema, by reference to itself. */
const wrapped = (value: Json): Json => ({
  $defs: {
    whole: {
      type: 'object',
      properties: { value, next: { anyOf: [{ type: 'null' }, { $ref: '#/$defs/whole' }] } },
      required: ['next'],
    },
  },
});

/** A text of a grammar by random bytes, the end taken where it may be; undefined if it becomes too long. */
function randomText(machine: Machine, seed: number): string | undefined {
  const random = randomGenerator(seed).next;
  const bytes: number[] = [];
  let at = machine.begin();
  for (; bytes.length < 3000; ) {
    const next = Array.from({ length: 256 }, (_, byte) => byte).filter(
      (byte) => machine.step(at, byte) !== NOWHERE,
    );
    const { complete } = machine.position(at);
    if (complete && (next.length === 0 || random() < 0.3)) return Buffer.from(bytes).toString();
    expect(next.length).toBeGreaterThan(0);
    const quote = next.includes(0x22) && random() < 0.2 ? 0x22 : undefined;
    const byte = quote ?? next[Math.floor(random() * next.length)]!;
    bytes.push(byte);
    at = machine.step(at, byte);
  }
  return undefined;
}

const machineOf = (jsonSchema: unknown) => new Machine(automatonOf(grammarOf({ jsonSchema })));

describe('texts of a schema', () => {
  it('validate, whatever bytes are chosen', () => {
    let ended = 0;
    fc.assert(
      fc.property(schema(3), fc.nat(), (given, seed) => {
        const machine = machineOf(given);
        const validates = validator(given);
        for (let i = 0; i < 3; i++) {
          const text = randomText(machine, seed + i);
          if (text === undefined) continue;
          ended++;
          expect([given, text, validates(text)]).toEqual([given, text, true]);
        }
      }),
      { numRuns: Math.max(60, SCHEMAS) },
    );
    expect(ended).toBeGreaterThan(120);
  });

  it('are all numbers within bounds, and no others', () => {
    const decimal = fc
      .tuple(fc.integer({ min: -30, max: 30 }), fc.nat(999))
      .map(([whole, part]) => `${whole}.${part}`);
    const values = fc.array(fc.oneof(decimal, fc.integer({ min: -1500, max: 1500 }).map(String)), {
      minLength: 8,
    });
    fc.assert(
      fc.property(numeric, values, (given, texts) => {
        const machine = machineOf(given);
        const validates = validator(given);
        for (const text of texts) {
          let at = machine.begin();
          for (const byte of Buffer.from(text)) if (at !== NOWHERE) at = machine.step(at, byte);
          const accepted = at !== NOWHERE && machine.position(at).complete;
          // An integer is written without a point.
          const wanted = validates(text) && !(given.type === 'integer' && /\.|^-0/.test(text));
          expect([given, text, accepted]).toEqual([given, text, wanted]);
        }
      }),
      { numRuns: 300 },
    );
  });

  it.each([
    [
      { type: 'object', properties: { a: { type: 'null' }, b: { type: 'null' } }, required: ['b'] },
      '{"b":null}',
      true,
    ],
    [
      { type: 'object', properties: { a: { type: 'null' }, b: { type: 'null' } }, required: ['b'] },
      '{ "a": null }',
      false,
    ],
    [{ type: 'object', additionalProperties: { type: 'null' }, minProperties: 1 }, '{}', false],
    [
      { properties: { a: true }, additionalProperties: { type: 'null' } },
      '{\n  "a": [1, {}],\n  "ab": null\n}',
      true,
    ],
    [{ properties: { a: true }, additionalProperties: { type: 'null' } }, '{"\\u0061": null}', false],
    [{ type: 'array', prefixItems: [true, { const: 1 }], minItems: 1 }, '[{"x": "y"}]', true],
    [
      {
        allOf: [
          { type: 'number', minimum: 3 },
          { type: 'integer', maximum: 4 },
        ],
      },
      '4',
      true,
    ],
    [
      {
        allOf: [
          { type: 'number', minimum: 3 },
          { type: 'integer', maximum: 4 },
        ],
      },
      '3.5',
      false,
    ],
    [{ $ref: '#/$defs/a~1b', $defs: { 'a/b': { const: 'x' } } }, '"x"', true],
    [{ type: 'object', properties: { __proto__: { const: 1 } } }, '{}', true],
    [true, ' {"a": [1e5, -0.5, "\\ud7ff", true, null]}', true],
  ])('%j: %s is %s', (given, text, wanted) => {
    const machine = machineOf(given);
    let at = machine.begin();
    for (const byte of Buffer.from(text as string)) if (at !== NOWHERE) at = machine.step(at, byte);
    expect(at !== NOWHERE && machine.position(at).complete).toBe(wanted);
  });
});

describe('a schema that cannot be kept', () => {
  const deep = (levels: number): Json => (levels === 0 ? {} : { type: 'array', items: deep(levels - 1) });
  const circular: Json = {};
  circular.items = circular;
  const wide = (name: string, count: number) => ({
    [name]: Array.from({ length: count }, (_, i) => ({
      type: 'object',
      properties: { [`p${i}`]: deep(20) },
    })),
  });
  const cases: [unknown, string][] = [
    [5, 'USAGE #: JSON schema: neither an object nor true or false'],
    [undefined, 'USAGE #: JSON schema: neither'],
    [circular, 'USAGE JSON schema: Converting circular structure to JSON'],
    [{ type: 'text' }, 'USAGE #/type: JSON schema: "text" is not a type (types are object, array'],
    [{ properties: { a: 1 } }, 'USAGE #/properties/a: JSON schema: neither an object'],
    [
      { items: { minLenght: 2 } },
      'UNSUPPORTED #/items: JSON schema: the keyword "minLenght" is not supported',
    ],
    [{ not: {} }, 'UNSUPPORTED #: JSON schema: the keyword "not" is not supported (supported are properties'],
    [{ type: 'array', uniqueItems: true }, 'the keyword "uniqueItems" is not supported'],
    [
      { oneOf: [{ type: 'integer' }, { type: 'number' }] },
      'UNSUPPORTED #/oneOf: JSON schema: branches 0 and 1 may both match (use anyOf',
    ],
    [
      { $ref: 'https://example.com/a' },
      'UNSUPPORTED #/$ref: JSON schema: $ref "https://example.com/a" leads elsewhere',
    ],
    [{ $ref: '#/$defs/a' }, 'USAGE #/$ref: JSON schema: $ref "#/$defs/a" leads nowhere'],
    [{ $ref: '#' }, 'UNSUPPORTED #: JSON schema: no JSON text satisfies it'],
    [{ anyOf: [{ $ref: '#' }, { type: 'null' }] }, 'rule "$ref #" of the grammar begins with itself'],
    [
      { type: 'string', pattern: 'a', maxLength: 3 },
      'two of pattern, format and length hold at once (say all of it in the pattern)',
    ],
    [{ type: 'string', format: 'phone' }, 'the format "phone" is not known (known are date'],
    [{ type: 'integer', minimum: 1e20 }, 'a bound has more than 15 digits'],
    [{ type: 'integer', minimum: 'a' }, 'USAGE #/minimum: JSON schema: "a" is not a number'],
    [{ type: 'array', minItems: -1 }, 'USAGE #/minItems: JSON schema: -1 is not a whole number from 0'],
    [{ type: 'integer', minimum: 4, maximum: 3 }, 'UNSUPPORTED #: JSON schema: no JSON text satisfies it'],
    [{ properties: { a: { $ref: '#' } }, required: ['a'] }, 'no JSON text satisfies it'],
    [deep(1000), 'LIMIT_EXCEEDED #/items/items'],
    [wide('anyOf', 3000), 'LIMIT_EXCEEDED'],
    [
      { type: 'string', pattern: '(a{1000}){1000}' },
      'LIMIT_EXCEEDED grammar: the grammar takes more than 200000 states',
    ],
    [{ type: 'array', maxItems: 1e9, items: { type: 'null' } }, 'LIMIT_EXCEEDED'],
    [{ enum: ['x'.repeat(2 << 20)] }, 'LIMIT_EXCEEDED JSON schema: 2097165 characters'],
  ];
  it.each(cases.map(([given, message]) => [message, given] as const))('%s', (message, given) => {
    let said = 'no error';
    try {
      machineOf(given);
    } catch (error) {
      if (!(error instanceof CflowError)) throw error;
      said = `${error.code} ${error.message}`;
    }
    expect(said).toContain(message);
  });
});

describe('the bundled model', () => {
  let directory: string;
  let model: Model;
  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'cflow-grammar-'));
    const source = fileURLToPath(new URL('../../../models/stories-arch2_4', import.meta.url));
    await convert({ source, output: join(directory, 'stories.cflow') });
    model = await Model.open(join(directory, 'stories.cflow'));
  });
  afterAll(async () => {
    await model.close();
    await rm(directory, { recursive: true });
  });

  async function answer(jsonSchema: unknown, seed: number) {
    await using session = model.createSession();
    const ids = model.requireTokenizer().encode('Once upon a time');
    let text = '';
    let finish: string | undefined;
    for await (const token of session.generate({ ids, seed, maxTokens: 200, grammar: { jsonSchema } })) {
      text += token.text;
      finish = token.finish;
    }
    return { text, finish };
  }

  it('answers with JSON that validates', async () => {
    const given = fc.sample(schema(3), { numRuns: SCHEMAS, seed: 1 });
    let ended = 0;
    for (const [i, each] of given.entries()) {
      const { text, finish } = await answer(each, i);
      if (finish !== 'eos') continue;
      ended++;
      expect([each, text, validator(each)(text)]).toEqual([each, text, true]);
    }
    if (SCHEMAS > 100) console.log(`${ended} of ${SCHEMAS} answers ended, and validate`);
    expect(ended).toBeGreaterThan(SCHEMAS / 2);
  });

  it('follows a regular expression and EBNF, and refuses what is none', async () => {
    const generated = async (grammar: never, ignoreEos = false) => {
      await using session = model.createSession();
      const ids = model.requireTokenizer().encode('Once');
      let text = '';
      for await (const token of session.generate({ ids, seed: 1, grammar, ignoreEos })) text += token.text;
      return text;
    };
    expect(await generated({ regex: ' [a-z]{3,5}(, [a-z]{2,4}){2}\\.' } as never)).toMatch(
      /^ [a-z]{3,5}(, [a-z]{2,4}){2}\.$/,
    );
    expect(await generated({ ebnf: 'root ::= " yes" | " no"' } as never)).toMatch(/^ (yes|no)$/);
    for (const wrong of [5, {}, { regex: 1 }, { regex: 'a', ebnf: 'b' }, { schema: {} }])
      await expect(generated(wrong as never)).rejects.toThrow(
        /grammar: .* is not an object with one of jsonSchema/,
      );
    await expect(generated({ regex: 'a' } as never, true)).rejects.toThrow(/ends with an end-of-text token/);
  });
});
