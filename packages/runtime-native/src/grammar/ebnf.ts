/** EBNF in the notation of llama.cpp's GBNF and of XGrammar. */
import { CflowError } from '@cflow/format';
import {
  ANY,
  chars,
  choice,
  complement,
  type Grammar,
  type Node,
  type Range,
  repeat,
  rule,
  sequence,
} from './grammar.js';

/** Characters of a grammar, and brackets within brackets. */
const MAX_EBNF = 1 << 20;
const MAX_DEPTH = 200;

const ROOT = 'root';
const TOKEN =
  /(?:\s|#[^\n]*(?:\n|$))*(?:(?<name>[A-Za-z_][\w.-]*)|(?<is>::=)|(?<text>"(?:[^"\\\n]|\\.)*")|(?<set>\[(?:[^\]\\\n]|\\.)*\])|(?<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\})|(?<sign>[|()*+?.]))/suy;
const BLANK = /(?:\s|#[^\n]*(?:\n|$))*/uy;
const CHARACTER =
  /\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\([nrtbf0"'\\[\]^/-])|([^\\])/suy;
const ESCAPES: Readonly<Record<string, string>> = { n: '\n', r: '\r', t: '\t', b: '\b', f: '\f', 0: '\0' };

interface Token {
  readonly kind: string;
  readonly value: string;
  readonly line: number;
}

/**
 * The grammar of a text with a rule called root.
 * @throws CflowError USAGE with the line, LIMIT_EXCEEDED for one that is too long or nested too deep
 */
export function ebnfGrammar(source: string): Grammar {
  if (source.length > MAX_EBNF)
    throw new CflowError('LIMIT_EXCEEDED', `the grammar has ${source.length} characters`, {
      field: 'grammar',
      limit: MAX_EBNF,
    });
  return new Parser(tokensOf(source)).grammar();
}

function tokensOf(source: string): Token[] {
  const tokens: Token[] = [];
  let at = 0;
  let line = 1;
  const newlines = (value: string) => value.split('\n').length - 1;
  while (at < source.length) {
    TOKEN.lastIndex = at;
    const match = TOKEN.exec(source);
    BLANK.lastIndex = at;
    const blank = BLANK.exec(source)![0];
    if (!match) {
      if (at + blank.length === source.length) break;
      const rest = source.slice(at + blank.length, at + blank.length + 20).split('\n')[0];
      wrong(`unexpected ${JSON.stringify(rest)}`, line + newlines(blank));
    }
    const [kind, value] = Object.entries(match.groups!).find(([, group]) => group !== undefined)!;
    line += newlines(blank);
    tokens.push({ kind, value, line });
    at += match[0].length;
  }
  return tokens;
}

class Parser {
  readonly #tokens: readonly Token[];
  #at = 0;

  constructor(tokens: readonly Token[]) {
    this.#tokens = tokens;
  }

  grammar(): Grammar {
    const rules = new Map<string, Node>();
    const named = new Map<string, number>();
    while (this.#at < this.#tokens.length) {
      const name = this.#take('name', 'the name of a rule');
      this.#take('is', '::=');
      if (rules.has(name.value)) wrong(`rule ${JSON.stringify(name.value)} is there twice`, name.line);
      rules.set(name.value, this.#choice(named, 0));
    }
    const [missing] = [...named].filter(([name]) => !rules.has(name));
    if (missing) wrong(`there is no rule ${JSON.stringify(missing[0])}`, missing[1]);
    if (!rules.has(ROOT)) wrong(`there is no rule "${ROOT}", which a grammar begins with`, 1);
    return { root: ROOT, rules };
  }

  #choice(named: Map<string, number>, depth: number): Node {
    if (depth > MAX_DEPTH) {
      const { line } = this.#tokens[this.#at - 1]!;
      throw new CflowError('LIMIT_EXCEEDED', `line ${line}: brackets nest more than ${MAX_DEPTH} deep`, {
        field: 'grammar',
        limit: MAX_DEPTH,
      });
    }
    const items = [this.#sequence(named, depth)];
    while (this.#skip('|')) items.push(this.#sequence(named, depth));
    return choice(...items);
  }

  #sequence(named: Map<string, number>, depth: number): Node {
    const items: Node[] = [];
    for (let item = this.#item(named, depth); item; item = this.#item(named, depth))
      items.push(this.#repeated(item));
    return sequence(...items);
  }

  #item(named: Map<string, number>, depth: number): Node | undefined {
    const token = this.#tokens[this.#at];
    if (!token || (token.kind === 'name' && this.#tokens[this.#at + 1]?.kind === 'is')) return undefined;
    this.#at++;
    if (token.kind === 'name') {
      if (!named.has(token.value)) named.set(token.value, token.line);
      return rule(token.value);
    }
    if (token.kind === 'text') return textOf(token);
    if (token.kind === 'set') return setOf(token);
    if (token.value === '.') return chars(...ANY);
    if (token.value === '(') {
      const node = this.#choice(named, depth + 1);
      if (!this.#skip(')')) wrong('a bracket ( is not closed', token.line);
      return node;
    }
    this.#at--;
    if (token.value === '|' || token.value === ')') {
      if (depth === 0 && token.value === ')') wrong('unexpected )', token.line);
      return undefined;
    }
    return wrong(`unexpected ${token.value}`, token.line);
  }

  #repeated(item: Node): Node {
    if (this.#skip('*')) return repeat(item, 0);
    if (this.#skip('+')) return repeat(item, 1);
    if (this.#skip('?')) return repeat(item, 0, 1);
    const token = this.#tokens[this.#at];
    if (token?.kind !== 'count') return item;
    this.#at++;
    const [, least, comma, most] = /(\d+)\s*(,?)\s*(\d*)/.exec(token.value)!;
    const min = Number(least);
    const max = comma === '' ? min : most === '' ? Number.POSITIVE_INFINITY : Number(most);
    if (max < min) wrong(`${token.value} counts down`, token.line);
    return repeat(item, min, max);
  }

  #skip(sign: string): boolean {
    const found = this.#tokens[this.#at]?.kind === 'sign' && this.#tokens[this.#at]!.value === sign;
    if (found) this.#at++;
    return found;
  }

  #take(kind: string, wanted: string): Token {
    const token = this.#tokens[this.#at];
    if (token?.kind === kind) {
      this.#at++;
      return token;
    }
    return wrong(
      `expected ${wanted}, got ${token?.value ?? 'the end'}`,
      token?.line ?? this.#tokens.at(-1)?.line ?? 1,
    );
  }
}

function setOf(token: Token): Node {
  const negated = token.value.startsWith('[^');
  const source = token.value.slice(negated ? 2 : 1, -1);
  const ranges: Range[] = [];
  const points = pieces(token, source);
  for (let i = 0; i < points.length; i++) {
    const { code } = points[i]!;
    const dash = points[i + 1]?.raw === '-' && points[i + 2];
    if (!dash) ranges.push([code, code]);
    else {
      if (dash.code < code) wrong(`${points[i]!.raw}-${dash.raw} counts down`, token.line);
      ranges.push([code, dash.code]);
      i += 2;
    }
  }
  return chars(...(negated ? complement(ranges) : ranges));
}

function pieces(token: Token, source: string): { readonly raw: string; readonly code: number }[] {
  const found: { raw: string; code: number }[] = [];
  CHARACTER.lastIndex = 0;
  for (let at = 0; at < source.length; ) {
    CHARACTER.lastIndex = at;
    const match = CHARACTER.exec(source);
    if (!match) wrong(`unknown escape ${source.slice(at, at + 2)} in ${token.value}`, token.line);
    const [raw, x, u, U, escaped, plain] = match;
    const hex = x ?? u ?? U;
    const code =
      hex === undefined
        ? (escaped === undefined ? plain! : (ESCAPES[escaped] ?? escaped)).codePointAt(0)!
        : Number.parseInt(hex, 16);
    if (code > 0x10ffff) wrong(`${raw} is no code point`, token.line);
    found.push({ raw, code });
    at += raw.length;
  }
  return found;
}

const textOf = (token: Token) =>
  sequence(...pieces(token, token.value.slice(1, -1)).map(({ code }) => chars([code, code])));

function wrong(problem: string, line: number): never {
  throw new CflowError('USAGE', `line ${line}: ${problem}`, { field: 'grammar' });
}
