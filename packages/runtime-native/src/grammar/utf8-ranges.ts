import type { Range } from './grammar.js';

/** Code points of each length in UTF-8, by their last. */
const LENGTHS = [0x7f, 0x7ff, 0xffff, 0x10ffff] as const;

/** Sequences of byte ranges whose bytes are the UTF-8 of the code points from `first` to `last`, surrogates not among them. */
export function utf8Ranges([first, last]: Range): Range[][] {
  const limit = LENGTHS.findIndex((most) => first <= most);
  if (last > LENGTHS[limit]!)
    return [...utf8Ranges([first, LENGTHS[limit]!]), ...utf8Ranges([LENGTHS[limit]! + 1, last])];
  if (limit === 0) return [[[first, last]]];
  // Wherever leading bytes differ, the continuation bytes below must run from the first to the last.
  for (let tail = 1; tail <= limit; tail++) {
    const mask = 64 ** tail - 1;
    if (Math.floor(first / (mask + 1)) === Math.floor(last / (mask + 1))) continue;
    if (first % (mask + 1) !== 0) {
      const end = first - (first % (mask + 1)) + mask;
      return [...utf8Ranges([first, end]), ...utf8Ranges([end + 1, last])];
    }
    if (last % (mask + 1) !== mask) {
      const end = last - (last % (mask + 1)) - 1;
      return [...utf8Ranges([first, end]), ...utf8Ranges([end + 1, last])];
    }
  }
  const low = Buffer.from(String.fromCodePoint(first));
  const high = Buffer.from(String.fromCodePoint(last));
  return [Array.from(low, (byte, i) => [byte, high[i]!] as const)];
}
