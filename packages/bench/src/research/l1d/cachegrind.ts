/** Misses of the compiled kernels, by an independent simulator: valgrind --tool=cachegrind. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { CflowError, TILE_ROWS } from '@cflow/format';
import type { BenchAddon, CacheGeometry } from '../../runner/addon.js';
import { interruption, throwIfInterrupted } from '../../runner/resources.js';
import { type Caches, type Kernel, simulate, type Workload } from './simulate.js';

/** Valgrind does not support AVX-512. */
const ISA = 'avx2';
/** Few rows: cachegrind is about 100 times slower. */
const ROWS = 256;
/** Passes over the matrix; their difference excludes program start and cold caches. */
const PASSES = [1, 3] as const;

export interface CachegrindRow {
  readonly workload: string;
  readonly kernel: string;
  /** Read misses per pass by layout, from cachegrind and from the simulation. */
  readonly cachegrind: { readonly tiled: number; readonly rowMajor: number };
  readonly simulated: { readonly tiled: number; readonly rowMajor: number };
}

/**
 * @param program `locality-test`, which the Makefile of runtime-native builds
 * @throws CflowError NOT_READABLE if valgrind or the program does not run
 */
export async function crossCheck(
  addon: BenchAddon,
  program: string,
  workload: Workload,
  kernel: Kernel,
  caches: Caches,
): Promise<CachegrindRow> {
  const cut = { ...workload, rows: ROWS };
  const passes = async (stripeRows: number) => {
    const run = (times: number) => {
      const shape = [cut.rows, cut.cols, stripeRows, times].map(String);
      return readMisses(program, [ISA, kernel.arithmetic, ...shape], caches);
    };
    const few = await run(PASSES[0]);
    return ((await run(PASSES[1])) - few) / (PASSES[1] - PASSES[0]);
  };
  const { tiled, rowMajor } = await simulate(addon, cut, kernel, {
    isa: ISA,
    caches,
    prefetcher: false,
    rows: ROWS,
    bare: false,
  });
  return {
    workload: workload.name,
    kernel: kernel.name,
    cachegrind: { tiled: await passes(TILE_ROWS), rowMajor: await passes(kernel.stripeRows) },
    simulated: { tiled: tiled.total, rowMajor: rowMajor.total },
  };
}

const option = (name: string, { bytes, ways }: CacheGeometry) => `--${name}=${bytes},${ways},64`;

async function readMisses(program: string, job: readonly string[], caches: Caches): Promise<number> {
  const args = [
    '--tool=cachegrind',
    '--cache-sim=yes',
    '--cachegrind-out-file=/dev/null',
    option('D1', caches.first),
    option('LL', caches.second),
    program,
    ...job,
  ];
  const { stderr } = await promisify(execFile)('valgrind', args, { signal: interruption }).catch(
    (cause: unknown) => {
      throwIfInterrupted();
      throw new CflowError('NOT_READABLE', `valgrind cannot run ${program}`, { file: program, cause });
    },
  );
  return parseMisses(stderr);
}

/**
 * @param summary final output of cachegrind, with `D1  misses: 1,234 ( 1,000 rd + 234 wr)`
 * @throws CflowError FORMAT_INVALID without that line
 */
export function parseMisses(summary: string): number {
  const [, reads] = /D1\s+misses:.*\(\s*([\d,]+)\s+rd/.exec(summary) ?? [];
  if (reads === undefined)
    throw new CflowError('FORMAT_INVALID', 'the output of cachegrind has no D1 read misses');
  return Number(reads.replaceAll(',', ''));
}
