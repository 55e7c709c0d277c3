/** Misses of both layouts in simulated caches, from the addresses that the kernels touch. */
import { DTYPES, stripeBytes, TILE_COLS, TILE_HEADER_BYTES, TILE_ROWS } from '@cflow/format';
import type { Addon, CacheGeometry, SimulatedCounts } from '@cflow/runtime-native';
import type { Arm, Workload } from './workloads.js';

export interface Caches {
  readonly first: CacheGeometry;
  readonly second: CacheGeometry;
}

export interface SimulateOptions {
  /** Whose vectors the kernels have. */
  readonly isa: string;
  readonly caches: Caches;
  readonly prefetcher: boolean;
  /** At most so many rows of the matrix are passed; counts are scaled to all of them. */
  readonly rows: number;
  /** Whether to leave out the headers of a row-major matrix; true by default. */
  readonly bare?: boolean;
}

/** Of the matrices, as in the report. */
export const DTYPE = 'q4_0';

export interface Misses {
  /** Read misses of the first cache by what was read: the matrix, the vector, the kernel's own arrays. */
  readonly weights: number;
  readonly vectors: number;
  readonly locals: number;
  readonly total: number;
  /** Of both caches. */
  readonly beyond: number;
}

export interface SimulatedRow {
  readonly workload: string;
  readonly arm: string;
  readonly caches: Caches;
  readonly prefetcher: boolean;
  readonly tiled: Misses;
  readonly rowMajor: Misses;
  /** Of totals, row-major by tiled. */
  readonly ratio: number;
}

/** Floats of a vector by instruction set; what is not listed has those of AVX2. */
const WIDTHS: Readonly<Record<string, number>> = { avx512: 16, avx512_vnni: 16, neon: 4 };
/** Kernels for int8 activations that are written by hand go by 0. */
const HAND_WRITTEN: Readonly<Record<string, number>> = { avx512_vnni: 0 };

export function widthOf(isa: string, arithmetic: Arm['arithmetic']): number {
  return (arithmetic === 'q8' ? HAND_WRITTEN[isa] : undefined) ?? WIDTHS[isa] ?? 8;
}

export async function simulate(
  addon: Addon,
  { name, rows, cols }: Workload,
  arm: Arm,
  options: SimulateOptions,
): Promise<SimulatedRow> {
  const { caches, prefetcher, isa, bare = true } = options;
  const passed = Math.min(rows, options.rows);
  const misses = async (stripeRows: number) =>
    missesOf(
      await addon.simulateMatvec({
        dtype: DTYPES[DTYPE].id,
        arithmetic: arm.arithmetic,
        rows: passed,
        cols,
        stripeRows,
        width: widthOf(isa, arm.arithmetic),
        ...caches,
        prefetcher,
      }),
      rows / passed,
      !bare || stripeRows === TILE_ROWS ? 1 : withoutHeaders(stripeRows, cols),
    );
  const tiled = await misses(TILE_ROWS);
  const rowMajor = await misses(arm.stripeRows);
  return {
    workload: name,
    arm: arm.name,
    caches,
    prefetcher,
    tiled,
    rowMajor,
    ratio: rowMajor.total / tiled.total,
  };
}

/**
 * A row-major matrix is simulated as tiles of few rows, each with a header that no row-major matrix has: the share of
 * its bytes that is left without them.
 */
export function withoutHeaders(stripeRows: number, cols: number): number {
  const headers = TILE_HEADER_BYTES * Math.ceil(cols / TILE_COLS);
  return 1 - headers / stripeBytes(DTYPE, stripeRows, cols);
}

function missesOf(counts: SimulatedCounts, scale: number, weightShare: number): Misses {
  const weights = counts.weights.misses * scale * weightShare;
  const vectors = counts.vectors.misses * scale;
  const locals = counts.locals.misses * scale;
  const beyond = counts.vectors.missesBeyond + counts.locals.missesBeyond;
  return {
    weights,
    vectors,
    locals,
    total: weights + vectors + locals,
    beyond: (counts.weights.missesBeyond * weightShare + beyond) * scale,
  };
}
