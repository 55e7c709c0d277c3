/**
 * The one table of steps. A row says what a step computes, its fields, and how it runs; the types of steps, what they
 * read and write, the schedule, the lowering and the check of the C++ program all follow from it (docs/adding-a-step.md).
 */
import type { Activation, RopeConfig } from '../model/config.js';

/** A tensor of the model by canonical name, and the stream that holds it. */
export interface WeightRef {
  readonly stream: string;
  readonly tensor: string;
}

/** What a transfer moves: a whole stream, or the experts of a layer that a routing chose or is predicted to choose. */
export type TransferTarget =
  | { readonly kind: 'stream'; readonly stream: string }
  | { readonly kind: 'experts'; readonly layer: number; readonly routing: string; readonly predicted?: true };

/** Index of a buffer in a program. */
export type BufferId = number;

/** Absolute byte offset in the file; −1 = none. */
export type Offset = number;

/** A tiled matrix: `stripes[i]` is the byte offset of output rows 128·i and on, absolute or relative to a base. */
export interface TiledMatrix {
  readonly rows: number;
  readonly cols: number;
  readonly stripes: Float64Array;
}

/** One output of a matvec of the plan: out = matrix · input (+ bias). */
export interface PlanOutput {
  readonly out: string;
  readonly matrix: WeightRef;
  readonly bias?: WeightRef;
}

/** One output of a matvec of a program. */
export interface MatvecOutput {
  readonly out: BufferId;
  readonly matrix: TiledMatrix;
  readonly bias: Offset;
}

/**
 * Field kinds: what stands in a step of the plan, where names are resolved by name, and in a step of a program, where
 * they are indices and byte offsets. A kind with `?` may be absent from the plan; the program then has −1 for a weight
 * and 0 for a number.
 */
interface FieldKinds {
  /** A buffer that is read. */
  input: { plan: string; program: BufferId };
  /** A buffer that tiled matrices read: in its int8 form where activations are int8. */
  tiledInput: { plan: string; program: BufferId };
  /** The same, in `topK` equal pieces. */
  tiledPieces: { plan: string; program: BufferId };
  /** A buffer that is written. */
  out: { plan: string; program: BufferId };
  /** A buffer that is changed in place. */
  inout: { plan: string; program: BufferId };
  /** A buffer whose int8 form is written. */
  int8Of: { plan: never; program: BufferId };
  /** Buffers that are read. */
  inputs: { plan: readonly string[]; program: readonly BufferId[] };
  /** Outputs of one pass over interleaved matrices. */
  outputs: { plan: readonly PlanOutput[]; program: readonly MatvecOutput[] };
  /** A KV cache that is read. */
  cacheIn: { plan: number; program: number };
  /** A KV cache that is appended to. */
  cacheOut: { plan: number; program: number };
  /** A bank of experts that is read; −1 = in memory. */
  bankIn: { plan: never; program: number };
  /** A bank of experts whose contents change. */
  bankOut: { plan: never; program: number };
  /** A bank of experts that is let go. */
  bank: { plan: never; program: number };
  /** A fetched stream; −1 = in memory. */
  stream: { plan: never; program: number };
  /** A plain f32 tensor. */
  weight: { plan: WeightRef; program: Offset };
  /** A tiled matrix. */
  matrix: { plan: WeightRef; program: TiledMatrix };
  /** The first byte of each expert's stream. */
  offsets: { plan: never; program: Float64Array };
  count: { plan: number; program: number };
  real: { plan: number; program: number };
  reals: { plan: readonly number[]; program: readonly number[] };
  flag: { plan: boolean; program: boolean };
  /** By name in the plan, by its index in `ACTIVATIONS` in a program. */
  activation: { plan: Activation; program: number };
  rope: { plan: RopeConfig; program: never };
  /** Index of a table of rotary frequencies. */
  ropeTable: { plan: never; program: number };
  target: { plan: TransferTarget; program: never };
  text: { plan: string; program: never };
}

/** The kinds of fields. */
export type FieldKind = keyof FieldKinds | `${'weight' | 'count' | 'real'}?`;
type Fields = Readonly<Record<string, FieldKind>>;

/** Split over all threads; run by one of them, in program order; or a start or end of a fetch. */
export type StepRun = 'parallel' | 'serial' | 'transfer';

interface StepDefinition {
  /** Who has such steps: the plan, the lowered program, or both. */
  readonly level: 'plan' | 'program' | 'both';
  /** What it computes, for people. */
  readonly does: string;
  readonly runs: StepRun | ((size: { readonly rows: number; readonly cols: number }) => StepRun);
  /** Fields of the plan's step and of the program's. */
  readonly fields: Fields;
  /** Fields that only the plan's step has. */
  readonly plan?: Fields;
  /** Fields that only the program's step has. */
  readonly program?: Fields;
}

/** A plain matrix of fewer bytes is not worth sharing: one thread reads it from its cache while the others wait. */
const SHARED_PLAIN_BYTES = 64 * 1024;

/** Every step, row by row. */
export const STEPS = {
  embed: {
    level: 'both',
    does: 'out = row of the token · scale; gathers one row, which is no stream',
    runs: 'serial',
    fields: { matrix: 'matrix', scale: 'real', out: 'out' },
  },
  rmsNorm: {
    level: 'both',
    does: 'out = input / √(mean(input²) + eps) · weight, per groupSize consecutive elements; no weight = ones; in place too',
    runs: 'serial',
    fields: { input: 'input', weight: 'weight?', groupSize: 'count', eps: 'real', out: 'out' },
    program: { weightLength: 'count' },
  },
  quantize: {
    level: 'program',
    does: 'the int8 form of input, in `parts` equal pieces',
    runs: 'serial',
    fields: { input: 'int8Of', parts: 'count', partLength: 'count' },
  },
  matvec: {
    level: 'both',
    does: 'outs[i] = matrix[i] · input (+ bias[i]); the matrices are one interleaved part of one stream, read in one pass',
    runs: 'parallel',
    fields: { input: 'tiledInput', outs: 'outputs' },
    program: { stream: 'stream' },
  },
  gatedMatvec: {
    level: 'program',
    does: 'out = act(gate · input + gateBias) ∘ (up · input + upBias): gate, up and GLU of a stripe in one unit of work',
    runs: 'parallel',
    fields: {
      input: 'tiledInput',
      gate: 'matrix',
      up: 'matrix',
      gateBias: 'weight?',
      upBias: 'weight?',
      activation: 'activation',
      out: 'out',
      stream: 'stream',
    },
  },
  plainMatvec: {
    level: 'both',
    does: 'out = weight · input, row-major f32 [rows, cols]: a router',
    /** By its size. */
    runs: ({ rows, cols }) => (4 * rows * cols >= SHARED_PLAIN_BYTES ? 'parallel' : 'serial'),
    fields: { input: 'input', weight: 'weight', rows: 'count', cols: 'count', out: 'out' },
  },
  rope: {
    level: 'both',
    does: 'rotates each head of buffer in place for the current position',
    runs: 'serial',
    fields: { buffer: 'inout', headDim: 'count' },
    plan: { rope: 'rope' },
    program: { table: 'ropeTable' },
  },
  append: {
    level: 'both',
    does: 'appends k and v of the current position to the KV cache',
    runs: 'serial',
    fields: { cache: 'cacheOut', k: 'input', v: 'input' },
  },
  attend: {
    level: 'both',
    does: 'causal attention over the KV cache; query head h reads kv head ⌊h · kvHeads / heads⌋; window: visible positions, the current one included, 0 = all; softcap: 0 = none',
    runs: 'parallel',
    fields: {
      cache: 'cacheIn',
      q: 'input',
      out: 'out',
      heads: 'count',
      scale: 'real',
      softcap: 'real?',
      window: 'count?',
    },
    plan: { kvHeads: 'count', headDim: 'count' },
  },
  glu: {
    level: 'both',
    does: 'out = act(gate) ∘ up; of a longer up from element upFrom on',
    runs: 'serial',
    fields: { gate: 'input', up: 'input', upFrom: 'count?', activation: 'activation', out: 'out' },
  },
  route: {
    level: 'both',
    does: 'chooses the topK largest logits (ties: lower index). out holds topK indices, then topK weights: softmax over the chosen (normalize) or over all, times scale[index] where there is one',
    runs: 'serial',
    fields: { logits: 'input', topK: 'count', normalize: 'flag', scale: 'weight?', out: 'out' },
  },
  expertsUp: {
    level: 'both',
    does: 'hidden[j] = act(gate_e · input) ∘ (up_e · input) for the topK experts e of routing, [topK, dim]; a program pads each to 32',
    runs: 'parallel',
    fields: {
      input: 'tiledInput',
      routing: 'input',
      topK: 'count',
      dim: 'count',
      activation: 'activation',
      hidden: 'out',
    },
    plan: { layer: 'count' },
    program: { experts: 'offsets', gate: 'matrix', up: 'matrix', bank: 'bankIn' },
  },
  expertsDown: {
    level: 'both',
    does: 'out = Σ_j weight_j · (down_e · hidden[j]), in the order of the routing',
    runs: 'parallel',
    fields: { hidden: 'tiledPieces', routing: 'input', topK: 'count', dim: 'count', out: 'out' },
    plan: { layer: 'count' },
    program: { experts: 'offsets', down: 'matrix', bank: 'bankIn' },
  },
  sum: {
    level: 'both',
    does: 'out = scale · Σ coefficients[i] · terms[i], summed left to right; out may be one of the terms; no scale = 1',
    runs: 'serial',
    fields: { terms: 'inputs', coefficients: 'reals', scale: 'weight?', out: 'out' },
  },
  clamp: {
    level: 'both',
    does: 'buffer = min(limit, max(−limit, buffer)), in place; NaN stays',
    runs: 'serial',
    fields: { buffer: 'inout', limit: 'real' },
  },
  softcap: {
    level: 'both',
    does: 'buffer = cap · tanh(buffer / cap), in place',
    runs: 'serial',
    fields: { buffer: 'inout', cap: 'real' },
  },
  copy: {
    level: 'program',
    does: 'out[at + i] = input[i]',
    runs: 'serial',
    fields: { input: 'input', out: 'out', at: 'count' },
  },
  call: {
    level: 'plan',
    does: 'starts a fetch and returns (the Call of PIPO); trigger says what made it possible: token, slot <layer> or a routing',
    runs: 'transfer',
    fields: { target: 'target', trigger: 'text' },
  },
  sync: {
    level: 'plan',
    does: 'waits for a fetch (the Synchronize of PIPO)',
    runs: 'transfer',
    fields: { target: 'target' },
  },
  callExperts: {
    level: 'program',
    does: 'starts to fetch the experts of a bank that routing chose or, with ahead, is predicted to choose',
    runs: 'transfer',
    fields: { bank: 'bankOut', routing: 'input', topK: 'count', ahead: 'flag' },
  },
  callStream: {
    level: 'program',
    does: 'starts to fetch a stream',
    runs: 'transfer',
    fields: { stream: 'stream' },
  },
  syncExperts: {
    level: 'program',
    does: 'waits for the experts of a bank; without it, each unit waits for the expert that it uses',
    runs: 'transfer',
    fields: { bank: 'bankOut' },
  },
  syncStream: {
    level: 'program',
    does: 'waits for a stream',
    runs: 'transfer',
    fields: { stream: 'stream' },
  },
  releaseExperts: {
    level: 'program',
    does: 'the last step that used the experts of a bank has run',
    runs: 'transfer',
    fields: { bank: 'bank' },
  },
  releaseStream: {
    level: 'program',
    does: 'the last step that used a stream has run',
    runs: 'transfer',
    fields: { stream: 'stream' },
  },
} as const satisfies Readonly<Record<string, StepDefinition>>;

type Steps = typeof STEPS;
type OpsOf<Level> = { [Op in keyof Steps]: Steps[Op]['level'] extends Level ? Op : never }[keyof Steps];

/** The steps of a plan. */
export type StepOp = OpsOf<'plan' | 'both'>;
/** The steps of a lowered program. */
export type ProgramOp = OpsOf<'program' | 'both'>;

type Side = 'plan' | 'program';
type Value<K, S extends Side> = K extends `${infer B extends keyof FieldKinds}?`
  ? FieldKinds[B][S]
  : K extends keyof FieldKinds
    ? FieldKinds[K][S]
    : never;
type Flat<T> = { [K in keyof T]: T[K] };
type PlanFields<F> = {
  readonly [N in keyof F as F[N] extends `${string}?` ? never : N]: Value<F[N], 'plan'>;
} & { readonly [N in keyof F as F[N] extends `${string}?` ? N : never]?: Value<F[N], 'plan'> };
type ProgramFields<F> = { readonly [N in keyof F]: Value<F[N], 'program'> };
type Own<Op extends keyof Steps, S extends Side> = Steps[Op] extends { readonly [K in S]: infer F }
  ? F
  : unknown;

/** A step of a plan: what it does, and on which buffers. `op` tells them apart. */
export type StepBody = {
  [Op in StepOp]: Flat<{ readonly op: Op } & PlanFields<Steps[Op]['fields']> & PlanFields<Own<Op, 'plan'>>>;
}[StepOp];

/** A step of a lowered program. */
export type ProgramStep = {
  [Op in ProgramOp]: Flat<
    { readonly op: Op } & ProgramFields<Steps[Op]['fields']> & ProgramFields<Own<Op, 'program'>>
  >;
}[ProgramOp];

/** The fields that a step has only in a program. */
export type ProgramOnlyFields<Op extends ProgramOp> = Flat<ProgramFields<Own<Op, 'program'>>>;

/** What a step reads and writes: buffers by name or index, `int8 <buffer>`, `cache <n>` and `experts <bank>`. */
export interface Access {
  readonly reads: readonly string[];
  readonly writes: readonly string[];
}

/** The fields of a step of the plan or of a program, or those that both have, by name. */
export function stepFields(op: keyof Steps, side: Side | 'shared'): [name: string, kind: FieldKind][] {
  const row: StepDefinition = STEPS[op];
  return Object.entries(side === 'shared' ? row.fields : { ...row.fields, ...row[side] });
}

/** How a step runs. */
export function stepRun(step: StepBody | ProgramStep): StepRun {
  const { runs }: StepDefinition = STEPS[step.op];
  return typeof runs === 'string' ? runs : runs(step as Extract<ProgramStep, { op: 'plainMatvec' }>);
}

type Values = readonly string[];
const names = (value: unknown): Values => [String(value)];
const read = (value: unknown) => ({ reads: names(value) });
/** What a field of each kind reads and writes; a kind without a row neither. `int8`: tiled matrices read the int8 form. */
const ACCESS: { readonly [K in FieldKind]?: (value: unknown, int8: boolean) => Partial<Access> } = {
  input: read,
  tiledInput: (value, int8) => read(int8 ? `int8 ${value}` : value),
  tiledPieces: (value, int8) => read(int8 ? `int8 ${value}` : value),
  inputs: (value) => ({ reads: (value as readonly unknown[]).map(String) }),
  out: (value) => ({ writes: names(value) }),
  inout: (value) => ({ reads: names(value), writes: names(value) }),
  int8Of: (value) => ({ reads: names(value), writes: [`int8 ${value}`] }),
  outputs: (value) => ({ writes: (value as readonly { out: unknown }[]).map(({ out }) => String(out)) }),
  cacheIn: (value) => read(`cache ${value}`),
  cacheOut: (value) => ({ writes: [`cache ${value}`] }),
  bankIn: (value) => read(`experts ${value}`),
  bankOut: (value) => ({ writes: [`experts ${value}`] }),
  target: (value) => {
    const target = value as TransferTarget;
    return { reads: target.kind === 'experts' ? [target.routing] : [] };
  },
};

function accessOf(step: StepBody | ProgramStep, side: Side, int8: boolean): Access {
  const found = stepFields(step.op, side).map(([name, kind]) =>
    ACCESS[kind]?.((step as unknown as Record<string, unknown>)[name], int8),
  );
  return {
    reads: found.flatMap((own) => own?.reads ?? []),
    writes: found.flatMap((own) => own?.writes ?? []),
  };
}

/** What a step of a plan reads and writes; phases follow from it. */
export function stepAccess(step: StepBody): Access {
  return accessOf(step, 'plan', false);
}

/** What a step of a program reads and writes. @param int8 whether tiled matrices read the int8 form of their input */
export function programAccess(step: ProgramStep, int8: boolean): Access {
  return accessOf(step, 'program', int8);
}
