/** Grammars against what defines them: regular expressions against RegExp, EBNF by hand, bounds by counting. */
import { CflowError } from '@cflow/format';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { automatonOf } from '../src/grammar/automaton.js';
import { Constraint, type GrammarSpec, grammarOf } from '../src/grammar/constraint.js';
import { chars, pruned } from '../src/grammar/grammar.js';
import { Machine, NOWHERE } from '../src/grammar/machine.js';
import { utf8Ranges } from '../src/grammar/utf8-ranges.js';
import { Vocabulary } from '../src/grammar/vocabulary.js';
import { TextTokenizer } from '../src/text/tokenizer.js';
import { tokenizerMetadata } from './model-file.js';

/** Whether a text follows a grammar; undefined where it only begins so. */
function matcher(spec: GrammarSpec): (text: string) => boolean | undefined {
  const machine = new Machine(automatonOf(pruned(grammarOf(spec))!));
  return (text) => {
    let at = machine.begin();
    for (const byte of Buffer.from(text)) {
      at = machine.step(at, byte);
      if (at === NOWHERE) return false;
    }
    return machine.position(at).complete || undefined;
  };
}
const matches = (spec: GrammarSpec, text: string) => matcher(spec)(text) === true;

/** What an error says, with its code. */
function errorOf(work: () => unknown): string {
  try {
    work();
  } catch (error) {
    if (error instanceof CflowError) return `${error.code} ${error.message}`;
    throw error;
  }
  return 'no error';
}

describe('utf8Ranges', () => {
  it('holds exactly the UTF-8 of its code points', () => {
    const borders = [0, 0x7f, 0x80, 0x7ff, 0x800, 0xffff, 0x10000, 0x10ffff];
    const edge = fc
      .constantFrom(...borders)
      .chain((at) => fc.integer({ min: -70, max: 70 }).map((d) => at + d));
    const code = fc
      .oneof(edge, fc.integer({ min: 0, max: 0x10ffff }))
      .map((at) => Math.min(0x10ffff, Math.max(0, at)));
    fc.assert(
      fc.property(code, code, code, (a, b, c) => {
        const [first, last] = [Math.min(a, b), Math.max(a, b)];
        fc.pre(c < 0xd800 || c > 0xdfff);
        const node = chars([first, last]);
        const paths = node.kind === 'chars' ? node.ranges.flatMap(utf8Ranges) : [];
        const bytes = [...Buffer.from(String.fromCodePoint(c))];
        const found = paths.filter(
          (path) =>
            path.length === bytes.length &&
            path.every(([low, high], i) => bytes[i]! >= low && bytes[i]! <= high),
        );
        expect(found).toHaveLength(c >= first && c <= last ? 1 : 0);
      }),
      { numRuns: 2000 },
    );
  });
});

/** Patterns with few letters, so that texts often match. */
const pattern: fc.Arbitrary<string> = fc.letrec<{ whole: string; part: string }>((tie) => ({
  part: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.constantFrom(
      'a',
      'b',
      'é',
      '.',
      '\\d',
      '\\W',
      '[ab1]',
      '[^a]',
      '\\p{L}',
      '\\.',
      '[\\s_]',
      '\\u{1f600}',
    ),
    tie('part').map((item) => `(?:${item})*`),
    tie('part').map((item) => `(${item})?`),
    tie('part').map((item) => `(${item}){1,3}?`),
    fc.tuple(tie('part'), tie('part')).map((both) => both.join('')),
    fc.tuple(tie('part'), tie('part')).map(([a, b]) => `(?:${a}|${b})`),
  ),
  whole: fc
    .array(tie('part'), { minLength: 1, maxLength: 3 })
    .chain((parts) =>
      fc
        .tuple(fc.boolean(), fc.boolean())
        .map(([start, end]) => `${start ? '^' : ''}${parts.join('')}${end ? '$' : ''}`),
    ),
})).whole;
const shortText = fc
  .array(fc.constantFrom('a', 'b', '1', 'é', ' ', '_', '.', '😀', '\n', '"', '\\'), { maxLength: 6 })
  .map((letters) => letters.join(''));

describe('regular expressions', () => {
  it('match what RegExp matches as a whole, and in JSON what it finds', () => {
    fc.assert(
      fc.property(pattern, fc.array(shortText, { minLength: 5, maxLength: 5 }), (source, texts) => {
        const whole = new RegExp(`^(?:${source.replace(/^\^|\$$/g, '')})$`, 'u');
        const anywhere = new RegExp(source, 'u');
        const [asWhole, inJson] = [
          matcher({ regex: source }),
          matcher({ jsonSchema: { type: 'string', pattern: source } }),
        ];
        for (const text of texts) {
          expect([source, text, asWhole(text) === true]).toEqual([source, text, whole.test(text)]);
          expect([source, text, inJson(JSON.stringify(text)) === true]).toEqual([
            source,
            text,
            anywhere.test(text),
          ]);
        }
      }),
      { numRuns: 400 },
    );
  });

  it.each(
    [
      [
        '(',
        'USAGE grammar.regex: not a regular expression: Invalid regular expression: /(/u: Unterminated group',
      ],
      [
        '(a)\\1',
        'UNSUPPORTED grammar.regex: the regular expression has "\\\\1" (references, lookaround, flags',
      ],
      ['a(?=b)', 'UNSUPPORTED grammar.regex: the regular expression has "(?=b)"'],
      ['(?:^a)', 'UNSUPPORTED grammar.regex: the regular expression has "^"'],
      ['a'.repeat(20_000), 'LIMIT_EXCEEDED grammar.regex: the regular expression has 20000 characters'],
      ['('.repeat(5000), 'LIMIT_EXCEEDED grammar.regex: groups nest more than 200 deep'],
    ].map(([regex, message]) => [message!, regex!] as const),
  )('%s', (message, regex) => {
    expect(errorOf(() => grammarOf({ regex }))).toContain(message);
  });
});

describe('EBNF', () => {
  const list = `# a list
root ::= "[" ws (item ("," ws item)*)? "]"   # of items
item ::= [0-9]{1,3} | name |
  "\\"" [^"\\\\\\n]* "\\""
name ::= [a-z_] [a-zA-Z0-9_-]*
ws ::= [ \\t]*
`;
  it.each([
    ['[]', true],
    ['[ 12,x-1,"a b"]', true],
    ['[1234]', false],
    ['[1,]', false],
    ['["é"]', true],
  ])('list: %s is %s', (text, wanted) => {
    expect(matches({ ebnf: list }, text)).toBe(wanted);
  });

  it('knows escapes, ranges, any character and counts', () => {
    const ebnf = 'root ::= "\\x41\\u00e9\\n" . [\\x61-c\\]\\-] ("no" | "on"){2} [^a-z]+ [a-]?';
    expect(matches({ ebnf }, 'Aé\n😀bnoon1-')).toBe(true);
    expect(matches({ ebnf }, 'Aé\n😀dnoon1-')).toBe(false);
  });

  it.each(
    [
      ['', 'there is no rule "root"'],
      ['root ::= a', 'grammar: line 1: there is no rule "a"'],
      ['root ::= "a"\nroot ::= "b"', 'line 2: rule "root" is there twice'],
      ['\n\nroot := "a"', 'line 3: unexpected ":= \\"a\\""'],
      ['root ::= ("a"', 'line 1: a bracket ( is not closed'],
      ['root ::= "a")', 'line 1: unexpected )'],
      ['root ::= *', 'line 1: unexpected *'],
      ['root ::= [b-a]', 'line 1: b-a counts down'],
      ['root ::= "a"{3,1}', 'line 1: {3,1} counts down'],
      ['root ::= "\\q"', 'line 1: unknown escape \\q'],
      ['root ::= "a', 'line 1: unexpected "\\"a"'],
      ['#'.repeat(100_000), 'there is no rule "root"'],
      [`root ::= ${'('.repeat(1000)}`, 'LIMIT_EXCEEDED grammar: line 1: brackets nest more than 200 deep'],
      ['root ::= root "a" | "a"', 'rule "root" of the grammar begins with itself'],
      ['root ::= a* b\na ::= ""\nb ::= a root', 'begins with itself'],
      ['root ::= "a"{1000000000}', 'LIMIT_EXCEEDED grammar: the grammar takes more than 200000 states'],
    ].map(([ebnf, message]) => [message!, ebnf!] as const),
  )('%s', (message, ebnf) => {
    expect(errorOf(() => automatonOf(grammarOf({ ebnf })))).toContain(message);
  });

  it('no text is begun that cannot be completed', () => {
    const ebnf = 'root ::= "a" never | "b" | "c" (never)?\nnever ::= "x" never';
    const accepts = matcher({ ebnf });
    expect(['a', 'b', 'c'].map(accepts)).toEqual([false, true, true]);
  });
});

describe('Constraint', () => {
  const tokens = ['a', 'b', 'ab', '😀', '', '</s>', 'a'];
  const vocabulary = new Vocabulary([
    ...tokens.map((token) => (token === '' ? undefined : Buffer.from(token))),
    ...[...Buffer.from('é')].map((byte) => Uint8Array.of(byte)),
  ]);
  const END = 5;
  /** Ids that may follow, from the start or after some. */
  function allowed(constraint: Constraint, ...ids: number[]): number[] {
    const logits = new Float32Array(12);
    constraint.processor()(logits, { ids: [0, 0, ...ids], promptLength: 2 });
    return [...logits.keys()].filter((id) => logits[id] === 0);
  }

  it('allows the tokens that continue the grammar, parts of a character among them, and the end where it is complete', () => {
    const constraint = new Constraint(grammarOf({ regex: 'ab?(é|😀)?' }), vocabulary, new Set([END]));
    expect(allowed(constraint)).toEqual([0, 2, 6]);
    expect(allowed(constraint, 0)).toEqual([1, 3, END, 7]);
    expect(allowed(constraint, 2, 7)).toEqual([8]);
    expect(allowed(constraint, 2, 7, 8)).toEqual([END]);
  });

  it('says where the vocabulary cannot go on, and that a grammar has no text', () => {
    const constraint = new Constraint(grammarOf({ regex: 'az' }), vocabulary, new Set([END]));
    expect(errorOf(() => allowed(constraint, 0))).toContain(
      'UNSUPPORTED grammar: no token of the vocabulary continues',
    );
    const never = grammarOf({ ebnf: 'root ::= "a" root' });
    expect(errorOf(() => new Constraint(never, vocabulary, new Set([END])))).toBe(
      'UNSUPPORTED grammar: no text follows the grammar',
    );
  });

  it('is right after it has forgotten its positions', () => {
    const constraint = new Constraint(grammarOf({ regex: '(a|b){0,20000}' }), vocabulary, new Set([END]));
    const processor = constraint.processor();
    const ids: number[] = [];
    const logits = new Float32Array(12);
    for (let i = 0; i < 20_000; i++) {
      logits.fill(0);
      processor(logits, { ids, promptLength: 0 });
      ids.push(i % 2);
    }
    expect([...logits.keys()].filter((id) => logits[id] === 0)).toEqual([0, 1, END, 6]);
    logits.fill(0);
    processor(logits, { ids, promptLength: 0 });
    expect([...logits.keys()].filter((id) => logits[id] === 0)).toEqual([END]);
  });

  it('stops a grammar that can be read in too many ways', () => {
    const ebnf = 'root ::= x\nx ::= "a" (x "b" | x "c" | x "d")?';
    const constraint = new Constraint(grammarOf({ ebnf }), vocabulary, new Set([END]));
    const ids = Array.from({ length: 40 }, () => 0);
    expect(errorOf(() => allowed(constraint, ...ids))).toContain(
      'LIMIT_EXCEEDED grammar: the grammar can be read in too many ways at once',
    );
  });
});

it('the bytes of tokens inside a text join to the text', () => {
  const tokenizer = new TextTokenizer(tokenizerMetadata());
  const text = 'Once upon a time, “é” 😀 <b>';
  const ids = tokenizer.encode(text);
  const bytes = ids.flatMap((id) => [...(tokenizer.textBytesOf(id) ?? [])]);
  const before = tokenizer.encode('a');
  expect(`a${Buffer.from(bytes)}`).toBe(tokenizer.decode([...before, ...ids]));
});
