import { DTYPES, stripeBytes, TILE_COLS, TILE_HEADER_BYTES, TILE_ROWS } from '@cflow/format';
import type { BenchAddon, CacheGeometry, SimulatedCounts } from '../../runner/addon.js';

/** The matrix-vector products that the report measures (§5.4), and their misses in simulated caches. */

export interface Workload {
  readonly name: string;
  /** Output rows. */
  readonly rows: number;
  /** Input columns. */
  readonly cols: number;
  /** Figures of the report; null for the workload that its tables omit. */
  readonly reported: {
    /** L1d read misses, row-major relative to tiled, Xeon E5-2650: 32 KiB, f32 activations, one row at a time. */
    readonly missRatio: number;
    /** Time, row-major relative to tiled, Ryzen 5 2600. */
    readonly speedup: number;
  } | null;
}

/**
 * arch2_4_8k_4l, d = 8,192. The report mentions five workloads and lists four; the fifth is the remaining matrix of a
 * layer.
 */
export const WORKLOADS: readonly Workload[] = [
  { name: 'dense-down', rows: 8192, cols: 32_768, reported: { missRatio: 7.29, speedup: 1.28 } },
  { name: 'attn-proj', rows: 8192, cols: 8192, reported: { missRatio: 6.75, speedup: 1.36 } },
  { name: 'dense-gateup', rows: 32_768, cols: 8192, reported: { missRatio: 6.72, speedup: 1.12 } },
  { name: 'expert-proj', rows: 8192, cols: 8192, reported: { missRatio: 6.88, speedup: 1.2 } },
  { name: 'expert-down', rows: 8192, cols: 4096, reported: null },
];

export interface Kernel {
  readonly name: string;
  readonly arithmetic: 'f32' | 'q8';
  /** Rows of the row-major matrix that share a pass over the vector. */
  readonly stripeRows: number;
}

/** Kernels: the report's baseline, ours with f32 activations, ours with quantized activations. */
export const KERNELS: readonly Kernel[] = [
  { name: 'f32, a row at a time', arithmetic: 'f32', stripeRows: 1 },
  { name: 'f32, 4 rows at a time', arithmetic: 'f32', stripeRows: 4 },
  { name: 'q8, a row at a time', arithmetic: 'q8', stripeRows: 1 },
];

/** Timing omits single-row f32: the kernel always computes four rows. */
export const TIMED_KERNELS = KERNELS.filter(
  ({ arithmetic, stripeRows }) => arithmetic === 'q8' || stripeRows > 1,
);

export interface Caches {
  readonly first: CacheGeometry;
  readonly second: CacheGeometry;
}

export interface SimulateOptions {
  /** Instruction set of the kernels. */
  readonly isa: string;
  readonly caches: Caches;
  readonly prefetcher: boolean;
  /** Maximum rows to simulate; counts are scaled to all rows. */
  readonly rows: number;
  /** Whether to leave out the headers of a row-major matrix; true by default. */
  readonly bare?: boolean;
}

/** Matrices as in the report. */
export const DTYPE = 'q4_0';

export interface Misses {
  /** L1 read misses of the matrix, the vector and the kernel's own arrays. */
  readonly weights: number;
  readonly vectors: number;
  readonly locals: number;
  readonly total: number;
  /** L1 and L2. */
  readonly beyond: number;
}

export interface SimulatedRow {
  readonly workload: string;
  readonly kernel: string;
  readonly caches: Caches;
  readonly prefetcher: boolean;
  readonly tiled: Misses;
  readonly rowMajor: Misses;
  /** Ratio of totals, row-major relative to tiled. */
  readonly ratio: number;
}

/** Floats per SIMD register by instruction set; default: AVX2. */
const WIDTHS: Readonly<Record<string, number>> = { avx512: 16, avx512_vnni: 16, neon: 4 };
/** 0 selects hand-written int8 kernels. */
const HAND_WRITTEN: Readonly<Record<string, number>> = { avx512_vnni: 0 };

export function widthOf(isa: string, arithmetic: Kernel['arithmetic']): number {
  return (arithmetic === 'q8' ? HAND_WRITTEN[isa] : undefined) ?? WIDTHS[isa] ?? 8;
}

export async function simulate(
  addon: BenchAddon,
  { name, rows, cols }: Workload,
  kernel: Kernel,
  options: SimulateOptions,
): Promise<SimulatedRow> {
  const { caches, prefetcher, isa, bare = true } = options;
  const passed = Math.min(rows, options.rows);
  const misses = async (stripeRows: number) =>
    missesOf(
      await addon.simulateMatvec({
        dtype: DTYPES[DTYPE].id,
        arithmetic: kernel.arithmetic,
        rows: passed,
        cols,
        stripeRows,
        width: widthOf(isa, kernel.arithmetic),
        ...caches,
        prefetcher,
      }),
      rows / passed,
      !bare || stripeRows === TILE_ROWS ? 1 : withoutHeaders(stripeRows, cols),
    );
  const tiled = await misses(TILE_ROWS);
  const rowMajor = await misses(kernel.stripeRows);
  return {
    workload: name,
    kernel: kernel.name,
    caches,
    prefetcher,
    tiled,
    rowMajor,
    ratio: rowMajor.total / tiled.total,
  };
}

/**
 * A row-major matrix is simulated as tiles of few rows. Returns the share of bytes without tile headers, which a
 * row-major matrix lacks.
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

/** Size and ways, as `--caches` takes them: 48K/12. */
export const cacheText = ({ bytes, ways }: CacheGeometry) =>
  `${bytes % 2 ** 20 ? `${bytes / 2 ** 10}K` : `${bytes / 2 ** 20}M`}/${ways}`;
