/**
 * The execution plan: a flat list of steps over named f32 buffers (design: the plan is the heart). An engine knows
 * these steps and nothing about architectures.
 */
import type { Activation, ModelConfig, RopeConfig } from '../model/config.js';

/** A buffer of f32; `length` in elements. Every buffer is zero before the first token. */
export interface BufferSpec {
  readonly name: string;
  readonly length: number;
}

/** A tensor of the model by canonical name, and the stream that holds it. */
export interface WeightRef {
  readonly stream: string;
  readonly tensor: string;
}

/** What a transfer moves: a whole stream, or the experts of a layer that a routing chose or is predicted to choose. */
export type TransferTarget =
  | { readonly kind: 'stream'; readonly stream: string }
  | { readonly kind: 'experts'; readonly layer: number; readonly routing: string; readonly predicted?: true };

/** A step and the phase that it belongs to. */
export type PlanStep = { readonly phase: number } & StepBody;

/** What a step does, and on which buffers. `op` tells them apart. */
export type StepBody =
  /** out = embedding row of the token × scale. A gather of one row, not a stream. */
  | { readonly op: 'embed'; readonly weight: WeightRef; readonly scale: number; readonly out: string }
  /**
   * Starts a fetch; returns at once (PIPO's Call). Transfers of a phase run before its other steps. `trigger` says, for
   * people, what made the fetch possible: `token`, `slot <layer>`, or the name of a routing.
   */
  | { readonly op: 'call'; readonly target: TransferTarget; readonly trigger: string }
  /** Waits for a fetch (PIPO's Synchronize). */
  | { readonly op: 'sync'; readonly target: TransferTarget }
  /** out = in / √(mean(in²) + eps) · weight, per `groupSize` consecutive elements; no weight = all ones. May run in place. */
  | {
      readonly op: 'rmsNorm';
      readonly input: string;
      readonly weight?: WeightRef;
      readonly groupSize: number;
      readonly eps: number;
      readonly out: string;
    }
  /** outs[i] = weights[i] · in (+ biases[i]); the weights are one interleaved part of one stream, read in one pass. */
  | {
      readonly op: 'matvec';
      readonly input: string;
      readonly weights: readonly WeightRef[];
      readonly biases?: readonly WeightRef[];
      readonly outs: readonly string[];
    }
  /** Rotates each head of `buffer` in place for the current position. */
  | { readonly op: 'rope'; readonly buffer: string; readonly headDim: number; readonly rope: RopeConfig }
  /** Appends k and v of the current position to cache `cache`. */
  | { readonly op: 'cacheAppend'; readonly cache: number; readonly k: string; readonly v: string }
  /** Causal attention over cache `cache`; query head h reads kv head ⌊h · kvHeads / heads⌋. */
  | {
      readonly op: 'attend';
      readonly cache: number;
      readonly q: string;
      readonly out: string;
      readonly heads: number;
      readonly kvHeads: number;
      readonly headDim: number;
      readonly scale: number;
      readonly softcap?: number;
      readonly slidingWindow?: number;
    }
  /** out = act(gate) · up, element by element; of a longer `up` from element `upFrom` on. */
  | {
      readonly op: 'glu';
      readonly gate: string;
      readonly up: string;
      readonly upFrom?: number;
      readonly activation: Activation;
      readonly out: string;
    }
  /**
   * Chooses the topK largest logits (ties: lower index). `out` holds topK indices, then topK weights:
   * softmax over the chosen (`normalize`), or softmax over all experts; times `scale`[index] where there is one.
   */
  | {
      readonly op: 'route';
      readonly logits: string;
      readonly topK: number;
      readonly normalize: boolean;
      readonly scale?: WeightRef;
      readonly out: string;
    }
  /** out = Σ_j weight_j · down_j(act(gate_j in) · up_j in) over the chosen experts of `layer`, in the order of the routing. */
  | {
      readonly op: 'experts';
      readonly layer: number;
      readonly input: string;
      readonly routing: string;
      readonly topK: number;
      readonly dim: number;
      readonly activation: Activation;
      readonly out: string;
    }
  /** out = scale · Σ coefficients[i] · terms[i], summed left to right; `out` may be one of the terms; no scale = 1. */
  | {
      readonly op: 'sum';
      readonly terms: readonly string[];
      readonly coefficients: readonly number[];
      readonly scale?: WeightRef;
      readonly out: string;
    }
  /** buffer = cap · tanh(buffer / cap), in place. */
  | { readonly op: 'softcap'; readonly buffer: string; readonly cap: number };

/** The kinds of steps. */
export type StepOp = StepBody['op'];

/** One key/value cache; fixedPoint has one per iteration of a block, so caches are not layers. */
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

/** What happens for one token, in order. */
export interface ExecutionPlan {
  readonly config: ModelConfig;
  readonly options: PlanOptions;
  readonly buffers: readonly BufferSpec[];
  readonly caches: readonly CacheSpec[];
  /** Ordered by phase; steps of one phase do not depend on one another. */
  readonly steps: readonly PlanStep[];
  readonly phaseCount: number;
  /** Residual norms are traced here: the buffer that holds the residual after each (effective) layer, and the phase that completed it. */
  readonly residuals: readonly { readonly layer: number; readonly buffer: string; readonly phase: number }[];
  readonly logits: string;
}
