/** The execution plan: what happens for one token, as steps over named f32 buffers. An engine knows no architecture. */
import type { ModelConfig } from '../model/config.js';
import type { StepBody } from './steps.js';

/** A buffer of f32; `length` in elements. Every buffer is zero before the first token. */
export interface BufferSpec {
  readonly name: string;
  readonly length: number;
}

/** A step and the phase that it belongs to. */
export type PlanStep = { readonly phase: number } & StepBody;

/** One KV cache; fixedPoint has one per iteration of a block, so caches are not layers. */
export interface CacheSpec {
  readonly cache: number;
  readonly layer: number;
  /** kvHeads · headDim. */
  readonly width: number;
  /** Positions that are ever read; absent = all. */
  readonly window?: number;
}

/**
 * Where transfers go. `none`: weights are in memory; `stall`: sync right after call; `overlap`: call as early as the
 * delays allow; `predict`: the same, and experts without a delay are called a layer ahead, on what the next router says
 * of the residual so far. A prediction moves bytes, never a result.
 */
export const TRANSFER_MODES = ['none', 'stall', 'overlap', 'predict'] as const;
/** One of `TRANSFER_MODES`. */
export type TransferMode = (typeof TRANSFER_MODES)[number];

/** What can be chosen of a plan that does not change its results. */
export interface PlanOptions {
  readonly transfers: TransferMode;
}

/** Where the residual of a layer is complete: traces compare it there. */
export interface ResidualPoint {
  readonly layer: number;
  readonly buffer: string;
  readonly phase: number;
  /** Index of the step that completes it; later steps of the phase may read it. */
  readonly step: number;
}

/** What happens for one token, in order. */
export interface ExecutionPlan {
  readonly config: ModelConfig;
  readonly options: PlanOptions;
  readonly buffers: readonly BufferSpec[];
  readonly caches: readonly CacheSpec[];
  /** By phase; within one, transfers, then the parallel steps, which are independent, then the serial ones in their order. */
  readonly steps: readonly PlanStep[];
  readonly phaseCount: number;
  /** The residual after each (effective) layer. */
  readonly residuals: readonly ResidualPoint[];
  readonly logits: string;
}
