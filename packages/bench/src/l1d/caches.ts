/** Sizes of caches: of this machine, and as options say them. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CflowError } from '@cflow/format';
import type { CacheGeometry } from '@cflow/runtime-native';

/** The report's Xeon E5-2650: Sandy Bridge. */
export const REPORTED_CACHES = {
  first: { bytes: 32 * 2 ** 10, ways: 8 },
  second: { bytes: 256 * 2 ** 10, ways: 8 },
} as const;

const LINE = 64;
const MOST_BYTES = 2 ** 30;
const SYSFS = '/sys/devices/system/cpu/cpu0/cache';
const UNITS: Readonly<Record<string, number>> = { '': 1, K: 2 ** 10, M: 2 ** 20 };

const powerOfTwo = (n: number) => n >= 1 && Number.isInteger(Math.log2(n));

/**
 * `48K/12`: bytes and ways.
 * @throws CflowError USAGE if that is no cache with lines of 64 bytes
 */
export function parseCache(field: string, text: string): CacheGeometry {
  const [, digits, unit, ways] = /^(\d+)([KM]?)\/(\d+)$/.exec(text) ?? [];
  const cache = { bytes: Number(digits) * (UNITS[unit ?? ''] ?? Number.NaN), ways: Number(ways) };
  if (cache.bytes <= MOST_BYTES && powerOfTwo(cache.bytes / (cache.ways * LINE))) return cache;
  throw new CflowError('USAGE', `--${field} is ${text}, expected bytes and ways that give 2^n sets`, {
    field,
    value: text,
    remedy: 'e.g. 32K/8 or 48K/12',
  });
}

export const cacheText = ({ bytes, ways }: CacheGeometry) =>
  `${bytes % 2 ** 20 ? `${bytes / 2 ** 10}K` : `${bytes / 2 ** 20}M`}/${ways}`;

/** Of a level, as Linux tells; undefined where it does not, or where the cache has other lines. */
export async function cacheOfMachine(level: 1 | 2, folder = SYSFS): Promise<CacheGeometry | undefined> {
  const names = await readdir(folder).catch(() => []);
  for (const name of names.filter((entry) => entry.startsWith('index')).sort()) {
    const read = (file: string) => readFile(join(folder, name, file), 'utf8').then((text) => text.trim());
    try {
      if ((await read('level')) !== String(level) || (await read('type')) === 'Instruction') continue;
      if ((await read('coherency_line_size')) !== String(LINE)) return undefined;
      return parseCache('size', `${await read('size')}/${await read('ways_of_associativity')}`);
    } catch {
      return undefined;
    }
  }
  return undefined;
}
