/** Regular expressions of ECMAScript (flag u) as grammars. */
import { CflowError } from '@cflow/format';
import { type AST, RegExpParser } from '@eslint-community/regexpp';
import {
  ANY,
  chars,
  choice,
  complement,
  type Node,
  type Range,
  repeat,
  sequence,
  sorted,
} from './grammar.js';

/** Characters of a pattern. */
const MAX_PATTERN = 16_384;

/** Groups within groups. */
const MAX_DEPTH = 200;

const DIGIT: readonly Range[] = [[0x30, 0x39]];
const WORD: readonly Range[] = [...DIGIT, [0x41, 0x5a], [0x5f, 0x5f], [0x61, 0x7a]];
const SPACE: readonly Range[] = [
  ...([
    [0x09, 0x0d],
    [0x20, 0x20],
    [0xa0, 0xa0],
    [0x1680, 0x1680],
    [0x2000, 0x200a],
  ] as const),
  ...([
    [0x2028, 0x2029],
    [0x202f, 0x202f],
    [0x205f, 0x205f],
    [0x3000, 0x3000],
    [0xfeff, 0xfeff],
  ] as const),
];
const LINE_ENDS: readonly Range[] = [
  [0x0a, 0x0a],
  [0x0d, 0x0d],
  [0x2028, 0x2029],
];

/** How a pattern applies to a text: to all of it, or anywhere in it unless it has anchors. */
export type RegexMode = 'whole' | 'search';

/**
 * What a regular expression matches.
 * @throws CflowError USAGE for one that does not parse; UNSUPPORTED for references, lookaround and anchors inside;
 *   LIMIT_EXCEEDED for one that is too long
 */
export function regexNode(pattern: string, mode: RegexMode, field: string): Node {
  if (pattern.length > MAX_PATTERN) {
    throw new CflowError('LIMIT_EXCEEDED', `the regular expression has ${pattern.length} characters`, {
      field,
      limit: MAX_PATTERN,
      remedy: `at most ${MAX_PATTERN} are taken`,
    });
  }
  return new Converter(pattern, field).convert(mode);
}

class Converter {
  readonly #pattern: string;
  readonly #field: string;

  constructor(pattern: string, field: string) {
    this.#pattern = pattern;
    this.#field = field;
  }

  convert(mode: RegexMode): Node {
    return choice(...this.#parse().alternatives.map((each) => this.#top(each.elements, mode)));
  }

  #parse(): AST.Pattern {
    if (nesting(this.#pattern) > MAX_DEPTH) {
      throw new CflowError('LIMIT_EXCEEDED', `groups nest more than ${MAX_DEPTH} deep`, {
        field: this.#field,
        limit: MAX_DEPTH,
      });
    }
    try {
      return new RegExpParser({ ecmaVersion: 2024 }).parsePattern(this.#pattern, 0, this.#pattern.length, {
        unicode: true,
      });
    } catch (cause) {
      throw new CflowError('USAGE', `not a regular expression: ${(cause as Error).message}`, {
        field: this.#field,
        value: this.#pattern,
        cause,
      });
    }
  }

  /** Anchors count at the ends of an alternative, where they are all that anchors are wanted for. */
  #top(elements: readonly AST.Element[], mode: RegexMode): Node {
    const is = (element: AST.Element | undefined, kind: string) =>
      element?.type === 'Assertion' && element.kind === kind;
    const starts = is(elements[0], 'start');
    const ends = is(elements.at(-1), 'end') && elements.length > (starts ? 1 : 0);
    const inner = elements.slice(starts ? 1 : 0, ends ? -1 : undefined).map((each) => this.#node(each));
    const around = mode === 'search' ? repeat(chars(...ANY), 0) : undefined;
    return sequence(...(around && !starts ? [around] : []), ...inner, ...(around && !ends ? [around] : []));
  }

  #node(element: AST.Element): Node {
    switch (element.type) {
      case 'Character':
        return chars([element.value, element.value]);
      case 'CharacterSet':
      case 'CharacterClass':
        return chars(...this.#ranges(element));
      case 'Group':
        if (element.modifiers) break;
        return this.#alternatives(element.alternatives);
      case 'CapturingGroup':
        return this.#alternatives(element.alternatives);
      case 'Quantifier':
        return repeat(this.#node(element.element), element.min, element.max);
    }
    return this.#refuse(element.raw);
  }

  #alternatives(alternatives: readonly AST.Alternative[]): Node {
    return choice(
      ...alternatives.map(({ elements }) => sequence(...elements.map((each) => this.#node(each)))),
    );
  }

  #ranges(element: AST.CharacterSet | AST.CharacterClass | AST.CharacterClassElement): readonly Range[] {
    switch (element.type) {
      case 'Character':
        return [[element.value, element.value]];
      case 'CharacterClassRange':
        return [[element.min.value, element.max.value]];
      case 'CharacterClass': {
        const inside = element.elements.flatMap((each) => this.#ranges(each));
        return element.negate ? complement(inside) : sorted(inside);
      }
      case 'CharacterSet':
        return this.#set(element);
      default:
        return this.#refuse(element.raw);
    }
  }

  #set(set: AST.CharacterSet): readonly Range[] {
    if (set.kind === 'any') return complement(LINE_ENDS);
    if (set.kind === 'property') return propertyRanges(set.raw);
    const ranges = { digit: DIGIT, word: WORD, space: SPACE }[set.kind];
    return set.negate ? complement(ranges) : ranges;
  }

  #refuse(construct: string): never {
    throw new CflowError('UNSUPPORTED', `the regular expression has ${JSON.stringify(construct)}`, {
      field: this.#field,
      value: this.#pattern,
      remedy: 'references, lookaround, flags and anchors inside a pattern are not supported',
    });
  }
}

/** Brackets that are open at once, at most. */
function nesting(pattern: string): number {
  let open = 0;
  let most = 0;
  for (const [sign] of pattern.matchAll(/\\.|[()]/gsu)) {
    if (sign === '(') most = Math.max(most, ++open);
    else if (sign === ')') open--;
  }
  return most;
}

const properties = new Map<string, readonly Range[]>();

/** What \p{…} means, asked of the engine that runs this. */
function propertyRanges(raw: string): readonly Range[] {
  const known = properties.get(raw);
  if (known) return known;
  const has = new RegExp(`^${raw}$`, 'u');
  const ranges: Range[] = [];
  let first = -1;
  for (let code = 0; code <= 0x110000; code++) {
    const inside = code < 0x110000 && has.test(String.fromCodePoint(code));
    if (inside && first < 0) first = code;
    if (inside || first < 0) continue;
    ranges.push([first, code - 1]);
    first = -1;
  }
  properties.set(raw, ranges);
  return ranges;
}
