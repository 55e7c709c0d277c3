/** The same misses by another simulator, of the kernels as they are compiled: valgrind --tool=cachegrind. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { CflowError, TILE_ROWS } from '@cflow/format';
import type { BenchAddon, CacheGeometry } from '../../runner/addon.js';
import { interruption, throwIfInterrupted } from '../../runner/resources.js';
import { type Arm, type Caches, simulate, type Workload } from './simulate.js';

/** Valgrind knows no AVX-512. */
const ISA = 'avx2';
/** Few: it runs a hundred times slower than the CPU. */
const ROWS = 256;
/** Passes over the matrix; what more of them cost is free of the program's start and of caches that begin empty. */
const PASSES = [1, 3] as const;

export interface CachegrindRow {
  readonly workload: string;
  readonly arm: string;
  /** Read misses of a pass by layout, by cachegrind and by the simulation of this package. */
  readonly cachegrind: { readonly tiled: number; readonly rowMajor: number };
  readonly simulated: { readonly tiled: number; readonly rowMajor: number };
}

/**
 * @param program `locality-test`, which the Makefile of runtime-native builds
 * @throws CflowError NOT_READABLE where valgrind or the program does not run
 */
export async function crossCheck(
  addon: BenchAddon,
  program: string,
  workload: Workload,
  arm: Arm,
  caches: Caches,
): Promise<CachegrindRow> {
  const cut = { ...workload, rows: ROWS };
  const passes = async (stripeRows: number) => {
    const run = (times: number) => {
      const shape = [cut.rows, cut.cols, stripeRows, times].map(String);
      return readMisses(program, [ISA, arm.arithmetic, ...shape], caches);
    };
    const few = await run(PASSES[0]);
    return ((await run(PASSES[1])) - few) / (PASSES[1] - PASSES[0]);
  };
  const { tiled, rowMajor } = await simulate(addon, cut, arm, {
    isa: ISA,
    caches,
    prefetcher: false,
    rows: ROWS,
    bare: false,
  });
  return {
    workload: workload.name,
    arm: arm.name,
    cachegrind: { tiled: await passes(TILE_ROWS), rowMajor: await passes(arm.stripeRows) },
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
      throw new CflowError('NOT_READABLE', `valgrind does not run ${program}`, { file: program, cause });
    },
  );
  return parseMisses(stderr);
}

/**
 * @param summary as cachegrind ends, with `D1  misses: 1,234 ( 1,000 rd + 234 wr)`
 * @throws CflowError FORMAT_INVALID without that line
 */
export function parseMisses(summary: string): number {
  const [, reads] = /D1\s+misses:.*\(\s*([\d,]+)\s+rd/.exec(summary) ?? [];
  if (reads === undefined)
    throw new CflowError('FORMAT_INVALID', 'cachegrind tells no read misses of its D1 cache');
  return Number(reads.replaceAll(',', ''));
}
