/** Strings of JSON as grammars. */
import {
  ANY,
  chars,
  choice,
  complement,
  EMPTY,
  mapChars,
  type Node,
  type Range,
  repeat,
  sequence,
  text,
  without,
} from '../grammar.js';
import { regexNode } from '../regex.js';

const QUOTE = text('"');
/** What stands in a string only behind a backslash. */
const ESCAPED: readonly Range[] = [
  [0x00, 0x1f],
  [0x22, 0x22],
  [0x5c, 0x5c],
];
const HEX: readonly Range[] = [
  [0x30, 0x39],
  [0x41, 0x46],
  [0x61, 0x66],
];
/** Digits of \u that begin no surrogate, which would be half a character. */
const NO_SURROGATE = choice(
  sequence(
    chars(
      ...without(HEX, [
        [0x44, 0x44],
        [0x64, 0x64],
      ]),
    ),
    repeat(chars(...HEX), 3, 3),
  ),
  sequence(chars([0x44, 0x44], [0x64, 0x64]), chars([0x30, 0x37]), repeat(chars(...HEX), 2, 2)),
);
const plain = (ranges: readonly Range[]) => chars(...without(ranges, ESCAPED));

/** One character of a string, in any spelling. */
const CHARACTER = choice(
  plain(ANY),
  sequence(
    text('\\'),
    choice(
      chars(...Array.from('"\\/bfnrt', (c): Range => [c.charCodeAt(0), c.charCodeAt(0)])),
      sequence(text('u'), NO_SURROGATE),
    ),
  ),
);

/** Any string, or one of some length in characters. */
export function stringNode(min = 0, max = Number.POSITIVE_INFINITY): Node {
  return sequence(QUOTE, repeat(CHARACTER, min, max), QUOTE);
}

/** A string that a regular expression matches somewhere, or as a whole; in the shortest spelling. */
export function patternNode(pattern: string, mode: 'whole' | 'search', field: string): Node {
  return sequence(QUOTE, mapChars(regexNode(pattern, mode, field), spelled), QUOTE);
}

function spelled(ranges: readonly Range[]): Node {
  const escaped = without(ranges, complement(ESCAPED));
  const codes = escaped.flatMap(([first, last]) =>
    Array.from({ length: last - first + 1 }, (_, i) => first + i),
  );
  const texts = codes.map((code) => text(JSON.stringify(String.fromCharCode(code)).slice(1, -1)));
  return choice(plain(ranges), ...texts);
}

/** A string that is none of some names, written without escapes so that it cannot be one of them in another spelling. */
export function otherNameNode(names: readonly string[]): Node {
  return sequence(QUOTE, otherThan(names.map((name) => Array.from(name, (c) => c.codePointAt(0)!))), QUOTE);
}

function otherThan(names: readonly (readonly number[])[]): Node {
  const firsts = new Set(names.flatMap((name) => name.slice(0, 1)));
  const anything = repeat(plain(ANY), 0);
  const elsewhere = plain(complement([...firsts].map((code): Range => [code, code])));
  return choice(
    ...(names.some((name) => name.length === 0) ? [] : [EMPTY]),
    sequence(elsewhere, anything),
    ...[...firsts].map((code) =>
      sequence(
        plain([[code, code]]),
        otherThan(names.filter((name) => name[0] === code).map((name) => name.slice(1))),
      ),
    ),
  );
}

const TIME = '([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)';
const DATE =
  '\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))';
const BYTE = '(\\d|[1-9]\\d|1\\d\\d|2[0-4]\\d|25[0-5])';
// Without numbers at the end, which would be an address, and without the xn-- of other scripts.
const LABEL = '[a-z0-9]{1,16}(-[a-z0-9]{1,16}){0,2}';
const HOSTNAME = `(${LABEL}\\.){0,5}[a-z]{2,16}`;

/** Formats of strings, each by what is surely one. */
export const FORMATS: ReadonlyMap<string, string> = new Map([
  ['date', DATE],
  ['time', TIME],
  ['date-time', `${DATE}T${TIME}`],
  ['uuid', '[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}'],
  ['ipv4', `${BYTE}(\\.${BYTE}){3}`],
  ['hostname', HOSTNAME],
  ['email', `[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,16}){0,3}@(${LABEL}\\.){1,4}[a-z]{2,16}`],
  ['uri', `https?://${HOSTNAME}(:[1-9]\\d{0,3})?(/[A-Za-z0-9._~-]{0,64}){0,16}`],
]);
