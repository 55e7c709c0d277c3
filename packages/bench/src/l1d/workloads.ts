/** The products of a matrix and a vector that the report measures (§5.4), and what it found. */

export interface Workload {
  readonly name: string;
  /** Outputs. */
  readonly rows: number;
  /** Inputs. */
  readonly cols: number;
  /** The report's; null for the workload that its tables leave out. */
  readonly reported: {
    /** L1d read misses, row-major by tiled, Xeon E5-2650: 32 KiB, f32 activations, one row at a time. */
    readonly missRatio: number;
    /** Time, row-major by tiled, Ryzen 5 2600. */
    readonly speedup: number;
  } | null;
}

/**
 * arch2_4_8k_4l, d = 8,192. The report speaks of five workloads and lists four; the fifth is the one matrix of a layer
 * that is missing among them.
 */
export const WORKLOADS: readonly Workload[] = [
  { name: 'dense-down', rows: 8192, cols: 32_768, reported: { missRatio: 7.29, speedup: 1.28 } },
  { name: 'attn-proj', rows: 8192, cols: 8192, reported: { missRatio: 6.75, speedup: 1.36 } },
  { name: 'dense-gateup', rows: 32_768, cols: 8192, reported: { missRatio: 6.72, speedup: 1.12 } },
  { name: 'expert-proj', rows: 8192, cols: 8192, reported: { missRatio: 6.88, speedup: 1.2 } },
  { name: 'expert-down', rows: 8192, cols: 4096, reported: null },
];

export interface Arm {
  readonly name: string;
  readonly arithmetic: 'f32' | 'q8';
  /** Rows of the row-major matrix that meet a stretch of the vector together. */
  readonly stripeRows: number;
}

/** Kernels that multiply: the report's baseline, ours with f32 activations, ours with those of 15 bits. */
export const ARMS: readonly Arm[] = [
  { name: 'f32, a row at a time', arithmetic: 'f32', stripeRows: 1 },
  { name: 'f32, 4 rows at a time', arithmetic: 'f32', stripeRows: 4 },
  { name: 'q8, a row at a time', arithmetic: 'q8', stripeRows: 1 },
];

/** A kernel with f32 activations computes four rows whether or not there are four: one at a time it wastes its time. */
export const TIMED_ARMS = ARMS.filter(({ arithmetic, stripeRows }) => arithmetic === 'q8' || stripeRows > 1);
