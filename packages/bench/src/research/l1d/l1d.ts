/** `cflow-bench l1d`: claim 2, does the order of the weights on disk reduce L1 data cache misses? */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CflowError } from '@cflow/format';
import type { CacheGeometry } from '../../runner/addon.js';
import { experiment } from '../../runner/experiment.js';
import { count, SHARED } from '../../runner/options.js';
import { benchL1d, l1dMeasured } from './bench.js';
import type { Caches } from './simulate.js';

/** Enough for a steady state per row; 30 s in total. */
const SIMULATED_ROWS = 512;
const QUICK_ROWS = 128;

export const l1d = experiment({
  name: 'l1d',
  describe: 'L1 misses and time of tiled and row-major weights',
  options: (y) =>
    y
      .option('isa', {
        type: 'string',
        default: '',
        describe: 'instruction set of the kernels [default: the best]',
      })
      .option('l1d', {
        type: 'string',
        describe: 'bytes/ways, simulated [default: of this machine, and of the report]',
      })
      .option('l2', { type: 'string', describe: 'bytes/ways, simulated' })
      .option('simulated-rows', { type: 'number', default: SIMULATED_ROWS, describe: 'rows of each matrix' })
      .option('timed-rows', { type: 'number', default: 2 ** 15, describe: 'rows of each matrix' })
      .option('runs', { ...SHARED.runs, default: 5 })
      .option('cachegrind', { type: 'string', describe: 'check by valgrind with this locality-test' }),
  timed: true,
  measure: async (args, run) =>
    benchL1d(
      {
        isa: args.isa,
        caches: await cachesOf(args),
        simulatedRows: count('simulated-rows', args.simulatedRows, 2 ** 20),
        timedRows: count('timed-rows', args.timedRows, 2 ** 20),
        runs: count('runs', args.runs, 1000),
        cachegrind: args.cachegrind,
      },
      run,
    ),
  quick: async (_, run) =>
    benchL1d(
      { isa: '', caches: await cachesOf({}), simulatedRows: QUICK_ROWS, timedRows: 1024, runs: 3 },
      run,
    ),
  results: l1dMeasured,
});

/** Requested geometries; default: this machine's, and the report's if different. */
async function cachesOf({
  l1d,
  l2,
}: {
  l1d?: string | undefined;
  l2?: string | undefined;
}): Promise<Caches[]> {
  const here = {
    first: l1d === undefined ? await cacheOfMachine(1) : parseCache('l1d', l1d),
    second: l2 === undefined ? await cacheOfMachine(2) : parseCache('l2', l2),
  };
  const { first = REPORTED_CACHES.first, second = REPORTED_CACHES.second } = here;
  const same = first.bytes === REPORTED_CACHES.first.bytes && first.ways === REPORTED_CACHES.first.ways;
  return l1d !== undefined || same ? [{ first, second }] : [REPORTED_CACHES, { first, second }];
}

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
 * @throws CflowError USAGE if not a valid cache with 64-byte lines
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

/** Cache of a level according to Linux; undefined if unknown or if lines are not 64 bytes. */
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
