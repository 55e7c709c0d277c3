/**
 * What the native engine executes: an ExecutionPlan with names replaced by indices and byte offsets. Architectures,
 * layouts and names are resolved on this side; the engine knows buffers, caches, offsets and the steps below.
 */

/** Index of a buffer. */
export type BufferId = number;

/** Absolute byte offset in the file; −1 = none. */
export type Offset = number;

/** A tiled matrix: `stripes[i]` is the byte offset of output rows 128·i and on, absolute or relative to a base. */
export interface TiledMatrix {
  readonly rows: number;
  readonly cols: number;
  readonly stripes: Float64Array;
}

export interface MatvecOutput {
  readonly out: BufferId;
  readonly matrix: TiledMatrix;
  readonly bias: Offset;
}

export type NativeStep =
  | { readonly op: 'embed'; readonly matrix: TiledMatrix; readonly scale: number; readonly out: BufferId }
  | {
      readonly op: 'rmsNorm';
      readonly input: BufferId;
      /** Offset of f32 weights, as many as `weightLength`; it is groupSize or the whole buffer. */
      readonly weight: Offset;
      readonly weightLength: number;
      readonly groupSize: number;
      readonly eps: number;
      readonly out: BufferId;
    }
  /** Makes the int8 form of a buffer that tiled matrices of `parts` equal pieces read (Arithmetic q8 only). */
  | { readonly op: 'quantize'; readonly input: BufferId; readonly parts: number; readonly partLength: number }
  | {
      readonly op: 'matvec';
      readonly input: BufferId;
      readonly outs: readonly MatvecOutput[];
      /** The fetched stream that holds all matrices, whose stripes count from it; −1 = in memory. */
      readonly stream: number;
    }
  /** out = act(gate · input + bias) ∘ (up · input + bias): gate, up and GLU of a stripe in one unit of work. */
  | {
      readonly op: 'gatedMatvec';
      readonly input: BufferId;
      readonly gate: TiledMatrix;
      readonly up: TiledMatrix;
      readonly gateBias: Offset;
      readonly upBias: Offset;
      readonly activation: number;
      readonly out: BufferId;
      readonly stream: number;
    }
  /** A row-major f32 matrix (router). */
  | {
      readonly op: 'plainMatvec';
      readonly input: BufferId;
      readonly weight: Offset;
      readonly rows: number;
      readonly cols: number;
      readonly out: BufferId;
    }
  | { readonly op: 'rope'; readonly buffer: BufferId; readonly headDim: number; readonly table: number }
  | { readonly op: 'append'; readonly cache: number; readonly k: BufferId; readonly v: BufferId }
  | {
      readonly op: 'attend';
      readonly cache: number;
      readonly q: BufferId;
      readonly out: BufferId;
      readonly heads: number;
      readonly scale: number;
      /** 0 = none. */
      readonly softcap: number;
      /** Visible positions, the current one included; 0 = all. */
      readonly window: number;
    }
  | {
      readonly op: 'glu';
      readonly gate: BufferId;
      readonly up: BufferId;
      /** First element of `up`. */
      readonly upFrom: number;
      readonly activation: number;
      readonly out: BufferId;
    }
  | {
      readonly op: 'route';
      readonly logits: BufferId;
      readonly topK: number;
      readonly normalize: boolean;
      /** Byte offset of f32 factors, one per expert; −1 = none. */
      readonly scale: number;
      readonly out: BufferId;
    }
  /** hidden[slot] = act(gate_e · input) ∘ (up_e · input) for the topK experts e of `routing`; slots are padded to 32. */
  | {
      readonly op: 'expertsUp';
      readonly input: BufferId;
      readonly routing: BufferId;
      readonly topK: number;
      readonly dim: number;
      readonly activation: number;
      readonly hidden: BufferId;
      /** Byte offset of each expert's stream; the stripes are relative to it. */
      readonly experts: Float64Array;
      readonly gate: TiledMatrix;
      readonly up: TiledMatrix;
      /** The fetched bank; −1 = in memory. */
      readonly bank: number;
    }
  /** out = Σ_j weight_j · (down_e · hidden[j]). */
  | {
      readonly op: 'expertsDown';
      readonly hidden: BufferId;
      readonly routing: BufferId;
      readonly topK: number;
      readonly dim: number;
      readonly out: BufferId;
      readonly experts: Float64Array;
      readonly down: TiledMatrix;
      readonly bank: number;
    }
  | {
      readonly op: 'sum';
      readonly terms: readonly BufferId[];
      readonly coefficients: readonly number[];
      /** Byte offset of one f32 that multiplies the sum; −1 = none. */
      readonly scale: number;
      readonly out: BufferId;
    }
  | { readonly op: 'softcap'; readonly buffer: BufferId; readonly cap: number }
  /** out[at + i] = input[i]. */
  | { readonly op: 'copy'; readonly input: BufferId; readonly out: BufferId; readonly at: number }
  /** Starts to fetch the experts of a bank that `routing` chose, or, with `ahead`, is predicted to choose. */
  | {
      readonly op: 'callExperts';
      readonly bank: number;
      readonly routing: BufferId;
      readonly topK: number;
      readonly ahead: boolean;
    }
  | { readonly op: 'syncExperts' | 'releaseExperts'; readonly bank: number }
  | { readonly op: 'callStream' | 'syncStream' | 'releaseStream'; readonly stream: number };

export type NativeOp = NativeStep['op'];

/**
 * What happens between two barriers: `parallel` steps are split over the threads; then the last thread to arrive runs
 * the `serial` ones, in order, and releases the others. Values are indices of steps.
 */
export interface Stage {
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
  readonly steps: readonly NativeStep[];
  readonly stages: readonly Stage[];
  /** Steps from this stage on make the output: they run for the last token only, unless that of all is asked for. */
  readonly headStage: number;
  /** What a run gives of a token: the logits, or what is traced. Written from `headStage` on only. */
  readonly output: BufferId;
  /** Token ids are below it. */
  readonly vocabSize: number;
  readonly contextLength: number;
}
