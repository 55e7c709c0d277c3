/**
 * What the native engine executes: an ExecutionPlan with names replaced by indices and byte offsets. Architectures,
 * layouts and names are resolved on this side; the engine knows buffers, caches, offsets and the steps of the step table
 * (`plan/steps.ts` of the format package).
 */
import type { BufferId, ProgramStep } from '@cflow/format';

/**
 * What happens between two barriers: `parallel` steps are split over the threads; then one thread runs the
 * `serial` ones, in order. Values are indices of steps.
 */
export interface ProgramPhase {
  readonly parallel: readonly number[];
  readonly serial: readonly number[];
  /** Run once a batch behind the serial ones: calls, waits and releases. */
  readonly transfers: readonly number[];
}

/** Where weights are that do not stay in the page cache; flattened pairs of byte offset and length. */
export interface NativeTiers {
  /** Read into memory when the model is opened. */
  readonly resident: Float64Array;
  /** Fetched every token, in the order of their first use. */
  readonly streams: Float64Array;
  /** Experts of each layer that has any, whether they are fetched or only recorded. */
  readonly banks: readonly { readonly regions: Float64Array }[];
}

export interface NativeCache {
  readonly kvHeads: number;
  readonly headDim: number;
  /** Positions that are ever read; 0 = all. */
  readonly window: number;
}

/**
 * From `length` positions on, frequency i of a table is multiplied by g^(−2i / (rotaryDim − 2)) with
 * g = factor · (position + 1) / length − (factor − 1); length 0 = never.
 */
export interface RopeGrowth {
  readonly factor: number;
  readonly length: number;
}

export interface NativeProgram {
  /** quant_type of the tiles. */
  readonly dtype: number;
  /** Elements of each buffer, by id. */
  readonly buffers: readonly number[];
  readonly caches: readonly NativeCache[];
  /** Radians per position of each rotated pair, [rotaryDim / 2], by table. */
  readonly ropes: readonly Float64Array[];
  /** By table. */
  readonly ropeGrowths: readonly RopeGrowth[];
  readonly tiers: NativeTiers;
  readonly steps: readonly ProgramStep[];
  readonly phases: readonly ProgramPhase[];
  /** Steps from this phase on make the output: they run for the last token only, unless that of all is asked for. */
  readonly headPhase: number;
  /** What a run gives of a token: the logits, or what is traced. Written from `headPhase` on only. */
  readonly output: BufferId;
  /** Token ids are below it. */
  readonly vocabSize: number;
  readonly contextLength: number;
}
