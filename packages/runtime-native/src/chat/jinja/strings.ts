/** Methods of Python's `str` that the library lacks or answers otherwise. Positions count characters, as Python's do. */

/** What a method may get; None and what is left out are undefined. */
type Argument = string | number | boolean | readonly string[] | undefined;
/** Undefined: Python would raise. */
type Method = (
  text: string,
  ...args: Argument[]
) => string | number | boolean | readonly string[] | undefined;

/** White space as Python's `str.isspace` has it. */
const SPACES = [
  ...[9, 10, 11, 12, 13, 28, 29, 30, 31, 32, 0x85, 0xa0, 0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000],
  ...Array.from({ length: 11 }, (_, i) => 0x2000 + i),
]
  .map((code) => String.fromCharCode(code))
  .join('');
/** Line ends as `str.splitlines` has them. */
const LINES = new RegExp(`\r\n|[\n\r${String.fromCharCode(11, 12, 28, 29, 30, 0x85, 0x2028, 0x2029)}]`);

const text = (value: Argument, otherwise = '') => (typeof value === 'string' ? value : otherwise);
const whole = (value: Argument, otherwise: number) => (typeof value === 'number' ? value : otherwise);
const length = (value: string) => Array.from(value).length;

/** `str.strip`; without characters it strips white space. */
export function strip(value: string, characters: Argument, start = true, end = true): string {
  const set = new Set(text(characters, SPACES));
  const all = Array.from(value);
  let from = 0;
  let to = all.length;
  while (start && from < to && set.has(all[from]!)) from++;
  while (end && to > from && set.has(all[to - 1]!)) to--;
  return all.slice(from, to).join('');
}

function find(value: string, part: string, from: Argument, to: Argument, last: boolean): number {
  const all = Array.from(value);
  const at = (place: number) => Math.min(all.length, place < 0 ? Math.max(0, place + all.length) : place);
  const start = at(whole(from, 0));
  const slice = all.slice(start, at(whole(to, all.length))).join('');
  const found = last ? slice.lastIndexOf(part) : slice.indexOf(part);
  return found < 0 || start > all.length ? -1 : start + length(slice.slice(0, found));
}

function pad(value: string, width: Argument, fill: Argument, left: (room: number) => number): string {
  const room = Math.max(0, whole(width, 0) - length(value));
  const before = left(room);
  return text(fill, ' ').repeat(before) + value + text(fill, ' ').repeat(room - before);
}

function split(value: string, separator: Argument, most: Argument): string[] {
  const limit = whole(most, -1) < 0 ? Number.POSITIVE_INFINITY : whole(most, -1);
  const parts: string[] = [];
  let rest = typeof separator === 'string' ? value : strip(value, SPACES, true, false);
  while (parts.length < limit) {
    const at = typeof separator === 'string' ? rest.indexOf(separator) : rest.search(SPACE);
    if (at < 0) break;
    parts.push(rest.slice(0, at));
    rest =
      typeof separator === 'string'
        ? rest.slice(at + separator.length)
        : strip(rest.slice(at), SPACES, true, false);
  }
  return typeof separator === 'string' || rest !== '' ? [...parts, rest] : parts;
}
const SPACE = new RegExp(`[${SPACES}]`);

const reversed = (value: string) => Array.from(value).reverse().join('');

function partition(value: string, separator: string, last: boolean): readonly string[] {
  const at = last ? value.lastIndexOf(separator) : value.indexOf(separator);
  if (at < 0) return last ? ['', '', value] : [value, '', ''];
  return [value.slice(0, at), separator, value.slice(at + separator.length)];
}

const every =
  (pattern: RegExp): Method =>
  (value) =>
    pattern.test(value);
const cased = (value: string) => /\p{Lu}|\p{Ll}|\p{Lt}/u.test(value);
const title = (value: string) =>
  value.replace(/\p{L}+/gu, (word) => {
    const [first = '', ...rest] = word;
    return first.toUpperCase() + rest.join('').toLowerCase();
  });

/** By name; arguments as Python's, without keywords. */
export const STRING_METHODS: Readonly<Record<string, Method>> = {
  strip: (value, characters) => strip(value, characters),
  lstrip: (value, characters) => strip(value, characters, true, false),
  rstrip: (value, characters) => strip(value, characters, false, true),
  find: (value, part, from, to) => find(value, text(part), from, to, false),
  rfind: (value, part, from, to) => find(value, text(part), from, to, true),
  index: (value, part, from, to) => notFound(find(value, text(part), from, to, false)),
  rindex: (value, part, from, to) => notFound(find(value, text(part), from, to, true)),
  count: (value, part) => (part === '' ? length(value) + 1 : value.split(text(part)).length - 1),
  split: (value, separator, most) => split(value, separator, most),
  rsplit: (value, separator, most) =>
    split(reversed(value), typeof separator === 'string' ? reversed(separator) : separator, most)
      .map(reversed)
      .reverse(),
  splitlines: (value, keep) => {
    if (value === '') return [];
    const pattern = keep ? new RegExp(`(?<=${LINES.source})(?<!\\r(?=\\n))`) : LINES;
    const lines = value.split(pattern);
    return lines.at(-1) === '' ? lines.slice(0, -1) : lines;
  },
  partition: (value, separator) => partition(value, text(separator), false),
  rpartition: (value, separator) => partition(value, text(separator), true),
  removeprefix: (value, part) => (value.startsWith(text(part)) ? value.slice(text(part).length) : value),
  removesuffix: (value, part) =>
    text(part) !== '' && value.endsWith(text(part)) ? value.slice(0, -text(part).length) : value,
  isdigit: every(/^[\p{Nd}\u00b2\u00b3\u00b9\u2070-\u2079\u2080-\u2089]+$/u),
  isdecimal: every(/^\p{Nd}+$/u),
  isnumeric: every(/^\p{N}+$/u),
  isalpha: every(/^\p{L}+$/u),
  isalnum: every(/^[\p{L}\p{N}]+$/u),
  isspace: every(new RegExp(`^[${SPACES}]+$`)),
  isupper: (value) => cased(value) && value === value.toUpperCase(),
  islower: (value) => cased(value) && value === value.toLowerCase(),
  istitle: (value) => cased(value) && value === title(value),
  swapcase: (value) =>
    Array.from(value, (c) => (c === c.toUpperCase() ? c.toLowerCase() : c.toUpperCase())).join(''),
  casefold: (value) => value.toLowerCase().replaceAll('ß', 'ss'),
  capitalize: (value) => {
    const [first = '', ...rest] = value;
    return first.toUpperCase() + rest.join('').toLowerCase();
  },
  title,
  ljust: (value, width, fill) => pad(value, width, fill, () => 0),
  rjust: (value, width, fill) => pad(value, width, fill, (room) => room),
  center: (value, width, fill) =>
    pad(value, width, fill, (room) => (room >> 1) + (room & whole(width, 0) & 1)),
  zfill: (value, width) => {
    const sign = /^[+-]/.exec(value)?.[0] ?? '';
    return sign + pad(value.slice(sign.length), whole(width, 0) - sign.length, '0', (room) => room);
  },
};

function notFound(at: number): number | undefined {
  return at < 0 ? undefined : at;
}
