import { CflowError } from '@cflow/format';
import { describe, expect, it } from 'vitest';
import { type JsonValue, parseJson, parseJsonObject } from '../src/json.js';

const parse = (text: string): JsonValue => parseJson(text, { file: 'config.json' });

function messageOf(text: string): string {
  try {
    parse(text);
  } catch (error) {
    if (error instanceof CflowError && error.code === 'CONFIG_INVALID') return error.message;
    throw error;
  }
  throw new Error(`accepted: ${text.slice(0, 80)}`);
}

describe('parseJson', () => {
  it('reads what JSON.parse reads', () => {
    const text =
      ' {"a": [1, -2.5e3, 0, true, false, null], "b": {"c": "x\\n\\u00e9\\"\\\\"}, "d": {}, "e": []}\r\n';
    expect(JSON.stringify(parse(text))).toBe(
      '{"a":[1,-2500,0,true,false,null],"b":{"c":"x\\né\\"\\\\"},"d":{},"e":[]}',
    );
  });

  it('accepts bare NaN and infinities outside strings, and leaves them alone inside', () => {
    const config = parse('{"limit": [Infinity, -Infinity, NaN], "text": "a NaN, -Infinity"}') as Record<
      string,
      unknown
    >;
    expect(config.limit).toEqual([Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, Number.NaN]);
    expect(config.text).toBe('a NaN, -Infinity');
  });

  it('accepts a BOM and does not count it as a column', () => {
    expect(parse('\ufeff[1]')).toEqual([1]);
    expect(messageOf('\ufeff[1')).toContain('line 1, column 3');
  });

  it('keeps __proto__ as a key without touching any prototype', () => {
    const parsed = parse('{"__proto__": {"polluted": 1}, "constructor": 2}') as Record<string, unknown>;
    expect(Object.keys(parsed)).toEqual(['__proto__', 'constructor']);
    expect(Object.getPrototypeOf(parsed)).toBeNull();
    expect(({} as Record<string, unknown>).polluted).toBeUndefined();
  });

  it.each([
    ['{"a": 1,\n  "a": 2}', 'config.json: not valid JSON at line 2, column 3: duplicate key "a"'],
    ['{"a": 1} x', 'config.json: not valid JSON at line 1, column 10: "x" after the end of the value'],
    ['[1]\0', 'config.json: not valid JSON at line 1, column 4: "\\u0000" after the end of the value'],
    ['{"a":\n\n  ?}', 'config.json: not valid JSON at line 3, column 3: expected a value, found "?"'],
    ['[1,]', 'config.json: not valid JSON at line 1, column 4: expected a value, found "]"'],
    ['{"a":1,}', 'config.json: not valid JSON at line 1, column 8: expected a key in quotes, found "}"'],
    ['{a:1}', 'config.json: not valid JSON at line 1, column 2: expected a key in quotes, found "a"'],
    ['{"a" 1}', 'config.json: not valid JSON at line 1, column 6: expected ":", found "1"'],
    ['[1 2]', 'config.json: not valid JSON at line 1, column 4: expected "]", found "2"'],
    ['', 'config.json: not valid JSON at line 1, column 1: expected a value, found the end of the text'],
    ['"abc', 'config.json: not valid JSON at line 1, column 1: string without an end'],
    ['"a\nb"', 'config.json: not valid JSON at line 1, column 3: control character in a string'],
    ['"\\x"', 'config.json: not valid JSON at line 1, column 1: string with an invalid escape'],
    ['[1e999]', 'config.json: not valid JSON at line 1, column 2: number 1e999 is out of range'],
    ['[01]', 'config.json: not valid JSON at line 1, column 3: expected "]", found "1"'],
    ['[+1]', 'config.json: not valid JSON at line 1, column 2: expected a value, found "+"'],
    ['[-NaN]', 'config.json: not valid JSON at line 1, column 2: expected a value, found "-"'],
    ['/* */1', 'config.json: not valid JSON at line 1, column 1: expected a value, found "/"'],
  ])('rejects %j', (text, message) => {
    expect(messageOf(text)).toBe(message);
  });

  it('allows 64 levels and no more, also for hostile depths', () => {
    const nested = (depth: number) => '['.repeat(depth) + ']'.repeat(depth);
    expect(() => parse(nested(64))).not.toThrow();
    expect(messageOf(nested(65))).toContain('column 65: nested deeper than 64');
    expect(messageOf('[{"a":'.repeat(1_000_000))).toContain('nested deeper than 64');
  });

  it('names what is not an object and what is not UTF-8', () => {
    const bytes = (text: string) => new TextEncoder().encode(text);
    expect(() => parseJsonObject(bytes('[1]'), { file: 'f' })).toThrow('f: the JSON value must be an object');
    expect(() => parseJsonObject(Uint8Array.of(0x7b, 0xff), { file: 'f' })).toThrow('f: not valid UTF-8');
  });
});
