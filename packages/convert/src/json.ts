/**
 * JSON as checkpoints really contain it. Python writes bare NaN and Infinity, some editors a BOM; JSON.parse rejects
 * both, keeps the last of duplicate keys, reads 1e999 as Infinity and gives no line. The lenient libraries (JSON5 and
 * its like) accept comments and trailing commas too and share the duplicate keys, so this small scanner stands here.
 */
import { CflowError, type ErrorCode, MAX_JSON_DEPTH } from '@cflow/format';

export type JsonValue = null | boolean | number | string | JsonValue[] | JsonObject;
/** Has no prototype, so `__proto__` is a key like any other. */
export interface JsonObject {
  [key: string]: JsonValue;
}

export interface JsonOptions {
  /** What errors call the text. */
  file: string;
  /** Code of a syntax error. */
  code?: ErrorCode;
}

interface Scanner extends JsonOptions {
  readonly text: string;
  at: number;
}

const WORDS: readonly (readonly [string, JsonValue])[] = [
  ['true', true],
  ['false', false],
  ['null', null],
  ['NaN', Number.NaN],
  ['Infinity', Number.POSITIVE_INFINITY],
  ['-Infinity', Number.NEGATIVE_INFINITY],
];
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const SPACES = new Set([0x20, 0x0a, 0x0d, 0x09]);
const QUOTE = 0x22;
const BACKSLASH = 0x5c;

/**
 * Parses strict JSON plus a leading BOM and bare NaN, Infinity and -Infinity.
 * @throws CflowError `code` (CONFIG_INVALID by default) with line and column: syntax, duplicate keys, numbers beyond
 *   f64, nesting over 64, anything after the value
 */
export function parseJson(text: string, options: JsonOptions): JsonValue {
  const scanner: Scanner = { ...options, text, at: text.charCodeAt(0) === 0xfeff ? 1 : 0 };
  const result = value(scanner, 1);
  skipSpaces(scanner);
  if (scanner.at < text.length) fail(scanner, `${here(scanner)} after the end of the value`);
  return result;
}

/** As parseJson, of UTF-8 bytes whose value must be an object. Throws the same code if it is not. */
export function parseJsonObject(bytes: Uint8Array, options: JsonOptions): JsonObject {
  const code = options.code ?? 'CONFIG_INVALID';
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (cause) {
    throw new CflowError(code, 'not valid UTF-8', { file: options.file, cause });
  }
  const result = parseJson(text, options);
  if (isJsonObject(result)) return result;
  throw new CflowError(code, 'the JSON value must be an object', { file: options.file });
}

export function isJsonObject(candidate: unknown): candidate is JsonObject {
  return typeof candidate === 'object' && candidate !== null && !Array.isArray(candidate);
}

function value(s: Scanner, depth: number): JsonValue {
  skipSpaces(s);
  const first = s.text[s.at];
  if (first === '{' || first === '[') {
    if (depth > MAX_JSON_DEPTH) fail(s, `nested deeper than ${MAX_JSON_DEPTH}`);
    return first === '{' ? object(s, depth) : array(s, depth);
  }
  if (first === '"') return string(s);
  for (const [word, meaning] of WORDS) {
    if (s.text.startsWith(word, s.at)) {
      s.at += word.length;
      return meaning;
    }
  }
  return number(s);
}

function object(s: Scanner, depth: number): JsonObject {
  const result: JsonObject = Object.create(null);
  sequence(s, '}', () => {
    skipSpaces(s);
    const keyAt = s.at;
    if (s.text[keyAt] !== '"') fail(s, `expected a key in quotes, found ${here(s)}`);
    const key = string(s);
    if (key in result) fail(s, `duplicate key ${JSON.stringify(key.slice(0, 80))}`, keyAt);
    skipSpaces(s);
    expect(s, ':');
    result[key] = value(s, depth + 1);
  });
  return result;
}

function array(s: Scanner, depth: number): JsonValue[] {
  const result: JsonValue[] = [];
  sequence(s, ']', () => result.push(value(s, depth + 1)));
  return result;
}

/** Items between the bracket at the scanner and `close`, separated by commas. */
function sequence(s: Scanner, close: string, item: () => void): void {
  s.at++;
  skipSpaces(s);
  if (s.text[s.at] === close) {
    s.at++;
    return;
  }
  for (;;) {
    item();
    skipSpaces(s);
    if (s.text[s.at] !== ',') break;
    s.at++;
  }
  expect(s, close);
}

function string(s: Scanner): string {
  const start = s.at;
  let escaped = false;
  for (let at = start + 1; at < s.text.length; at++) {
    const unit = s.text.charCodeAt(at);
    if (unit < 0x20) fail(s, 'control character in a string', at);
    if (unit === QUOTE) {
      s.at = at + 1;
      return escaped ? unescaped(s, start) : s.text.slice(start + 1, at);
    }
    if (unit === BACKSLASH) {
      escaped = true;
      at++;
    }
  }
  return fail(s, 'string without an end', start);
}

function unescaped(s: Scanner, start: number): string {
  try {
    return JSON.parse(s.text.slice(start, s.at)) as string;
  } catch {
    return fail(s, 'string with an invalid escape', start);
  }
}

function number(s: Scanner): number {
  NUMBER.lastIndex = s.at;
  const digits = NUMBER.exec(s.text)?.[0];
  if (digits === undefined) return fail(s, `expected a value, found ${here(s)}`);
  const result = Number(digits);
  if (!Number.isFinite(result)) fail(s, `number ${digits.slice(0, 40)} is out of range`);
  s.at += digits.length;
  return result;
}

function skipSpaces(s: Scanner): void {
  while (SPACES.has(s.text.charCodeAt(s.at))) s.at++;
}

function expect(s: Scanner, wanted: string): void {
  if (s.text[s.at] !== wanted) fail(s, `expected "${wanted}", found ${here(s)}`);
  s.at++;
}

function here(s: Scanner): string {
  const found = s.text.codePointAt(s.at);
  return found === undefined ? 'the end of the text' : JSON.stringify(String.fromCodePoint(found));
}

function fail(s: Scanner, problem: string, at = s.at): never {
  const before = s.text.slice(0, at);
  const line = before.split('\n').length;
  const column = at - before.lastIndexOf('\n') - (line === 1 && before.charCodeAt(0) === 0xfeff ? 1 : 0);
  throw new CflowError(
    s.code ?? 'CONFIG_INVALID',
    `not valid JSON at line ${line}, column ${column}: ${problem}`,
    {
      file: s.file,
      field: undefined,
      value: `${line}:${column}`,
    },
  );
}
