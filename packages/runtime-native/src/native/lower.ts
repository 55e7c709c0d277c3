/** Lowers a plan over a file to the program of the native engine: names become indices and byte offsets. */
import {
  ACTIVATIONS,
  type Activation,
  alignUp,
  DTYPES,
  type Dtype,
  type ExecutionPlan,
  type FieldKind,
  type MatvecOutput,
  type ModelFile,
  type Phase,
  type PlanOutput,
  type PlanStep,
  type ProgramOnlyFields,
  type ProgramOp,
  type ProgramStep,
  programAccess,
  type RopeConfig,
  type StepOp,
  schedule,
  stepFields,
  stepRun,
  type TiledMatrix,
  type TransferTarget,
  type WeightRef,
} from '@cflow/format';
import { ropeFrequencies } from '../reference/math.js';
import { type GatedFusion, gatedFusions } from './fuse.js';
import type { NativeProgram, ProgramPhase, RopeGrowth } from './program.js';
import { insertQuantize } from './quantize-steps.js';
import {
  bankLayers,
  expertHidden,
  IN_MEMORY,
  isLate,
  nativeTiers,
  type Placement,
  placeTransfers,
} from './tiers.js';
import { completedBy, type TracePoint } from './trace.js';
import { WeightMap } from './weight-map.js';

/** f32 activations everywhere, or int8 ones in front of quantized tiles. */
export const ARITHMETICS = ['f32', 'q8'] as const;
export type Arithmetic = (typeof ARITHMETICS)[number];

export interface LowerOptions {
  readonly arithmetic: Arithmetic;
  /** Let steps run as early as the delays allow; false = strictly in program order, to measure what that is worth. */
  readonly delayAware: boolean;
  /** The program's output is then the logits and, behind them, the buffers of these points in their order. */
  readonly trace?: readonly TracePoint[];
  /** What is fetched while the model runs, by the transfers of the plan; absent = nothing. */
  readonly placement?: Placement | undefined;
  /** Call experts even if they are in memory, so that the engine can note which. */
  readonly recordRoutings?: boolean | undefined;
}

/** A program, and what it needs of the memory for streams. */
export interface LoweredPlan {
  readonly program: NativeProgram;
  /** Fetched streams that are in use at the same time, at most. */
  readonly liveStreams: number;
}

/** Buffers that matrices read in pieces are padded to this many elements a piece. */
const PIECE = 32;

/** f16 and f32 tiles always take f32 activations. */
export function readsInt8(dtype: Dtype, arithmetic: Arithmetic): boolean {
  return arithmetic === 'q8' && DTYPES[dtype].scaleBytes > 0;
}

/**
 * The program of a plan over a file. Of the plan's transfers those of experts that are fetched are kept; those of
 * streams follow from the phases, for a stream is fetched as soon as there is room for it.
 * @throws CflowError INTERNAL if the plan names a tensor that the file has not
 */
export function lowerPlan(plan: ExecutionPlan, file: ModelFile, options: LowerOptions): LoweredPlan {
  const placement = options.placement ?? IN_MEMORY;
  const lowering = new Lowering(plan, file, placement, options);
  const quantized = readsInt8(file.dtype, options.arithmetic);
  const { steps, headFrom } = lowering.quantized(quantized);
  const stalls = plan.options.transfers === 'stall';
  const hidden = expertHidden(steps);
  const schedulable = steps.map((step) => ({
    ...programAccess(step, quantized),
    runs: stepRun(step),
    late: placement.experts && !stalls && isLate(step, hidden),
  }));
  const scheduled = schedule(schedulable, { delayAware: options.delayAware, headFrom });
  const { phases, order, liveStreams, ...placed } = placeTransfers(steps, toProgramPhases(scheduled), stalls);
  const program: NativeProgram = {
    dtype: DTYPES[file.dtype].id,
    buffers: lowering.buffers,
    caches: lowering.caches(),
    ropes: lowering.ropes,
    ropeGrowths: lowering.ropeGrowths,
    tiers: nativeTiers(
      file,
      placement,
      order.map((stream) => lowering.streams[stream]!),
    ),
    steps: placed.steps,
    phases,
    headPhase: phases.findIndex(({ parallel }) => parallel.includes(headFrom)),
    output: lowering.result,
    vocabSize: plan.config.vocabSize,
    contextLength: plan.config.contextLength,
  };
  return { program, liveStreams };
}

/** The engine runs the transfers that open a phase at the end of the one before: behind its serial steps, once a batch. */
function toProgramPhases(phases: readonly Phase[]): ProgramPhase[] {
  return phases.flatMap(({ parallel, serial }, phase) =>
    parallel.length + serial.length > 0
      ? [{ parallel, serial, transfers: phases[phase + 1]?.transfer ?? [] }]
      : [],
  );
}

type StepOf<Op extends StepOp> = Extract<PlanStep, { op: Op }>;

const activationId = (activation: Activation) => ACTIVATIONS.indexOf(activation);

/** Field kinds whose values are another thing in a program. */
const LOWER_FIELD: { readonly [K in FieldKind]?: (value: never, at: Lowering) => unknown } = {
  input: (name: string, at) => at.buffer(name),
  tiledInput: (name: string, at) => at.buffer(name),
  tiledPieces: (name: string, at) => at.buffer(name),
  out: (name: string, at) => at.buffer(name),
  inout: (name: string, at) => at.buffer(name),
  inputs: (names: readonly string[], at) => names.map((name) => at.buffer(name)),
  outputs: (outs: readonly PlanOutput[], at) => outs.map((out) => at.output(out)),
  weight: (ref: WeightRef, at) => at.weightOffset(ref),
  'weight?': (ref: WeightRef | undefined, at) => at.weightOffset(ref),
  matrix: (ref: WeightRef, at) => at.weights.tiled(ref),
  'count?': (count: number | undefined) => count ?? 0,
  'real?': (real: number | undefined) => real ?? 0,
  activation: activationId,
};

type SharedOp = StepOp & ProgramOp;
/** The fields that a program's step has besides those of the plan's. */
const PROGRAM_FIELDS: {
  readonly [Op in SharedOp]?: (step: StepOf<Op>, at: Lowering) => ProgramOnlyFields<Op>;
} = {
  rmsNorm: ({ weight, groupSize }, at) => ({
    weightLength: weight ? at.weights.plain(weight).shape[0]! : groupSize,
  }),
  matvec: ({ outs }, at) => ({ stream: at.stream(outs[0]!.matrix) }),
  rope: ({ rope }, at) => ({ table: at.rope(rope) }),
  expertsUp: ({ layer }, at) => at.experts(layer, 'gate', 'up'),
  expertsDown: ({ layer }, at) => at.experts(layer, 'down'),
};

/** A step that plan and program both have: field by field, as the step table says. */
function lowerShared(step: StepOf<SharedOp>, at: Lowering): ProgramStep {
  const values = step as unknown as Readonly<Record<string, never>>;
  const own = PROGRAM_FIELDS[step.op] as ((step: StepOf<SharedOp>, at: Lowering) => object) | undefined;
  const shared = stepFields(step.op, 'shared').map(([name, kind]) => {
    const lower = LOWER_FIELD[kind];
    return [name, lower ? lower(values[name]!, at) : values[name]];
  });
  return { op: step.op, ...Object.fromEntries(shared), ...own?.(step, at) } as ProgramStep;
}

function lowerStep(step: PlanStep, at: Lowering): ProgramStep[] {
  if (step.op === 'call') return at.call(step.target);
  return step.op === 'sync' ? at.sync(step.target) : [lowerShared(step, at)];
}

/** What is collected while the steps of one plan are lowered. */
class Lowering {
  readonly weights: WeightMap;
  /** Elements by buffer id. */
  readonly buffers: number[] = [];
  readonly ropes: Float64Array[] = [];
  readonly ropeGrowths: RopeGrowth[] = [];
  /** Index of the first native step that only the logits need. */
  headFrom = 0;
  /** Buffer that a run gives. */
  result = -1;
  readonly #plan: ExecutionPlan;
  readonly #lengths: Map<string, number>;
  readonly #bufferIds = new Map<string, number>();
  readonly #ropeIds = new Map<string, number>();
  readonly #trace: readonly TracePoint[];
  readonly #placement: Placement;
  readonly #callsExperts: boolean;
  readonly #banks: ReadonlyMap<number, number>;
  /** Names of the fetched streams, in the order of the plan. */
  readonly streams: string[] = [];

  constructor(plan: ExecutionPlan, file: ModelFile, placement: Placement, options: LowerOptions) {
    const { trace = [], recordRoutings = false } = options;
    this.#plan = plan;
    this.#placement = placement;
    this.#callsExperts = placement.experts || recordRoutings;
    this.#banks = new Map(bankLayers(file).map((layer, bank) => [layer, bank]));
    this.#lengths = new Map(plan.buffers.map(({ name, length }) => [name, length]));
    for (const step of plan.steps) {
      if (step.op === 'expertsUp') this.#lengths.set(step.hidden, step.topK * alignUp(step.dim, PIECE));
    }
    this.weights = new WeightMap(file);
    this.#trace = trace;
  }

  steps(): ProgramStep[] {
    const { gated, absorbed } = gatedFusions(this.#plan.steps);
    const copies = this.#copies();
    const steps: ProgramStep[] = [];
    for (const [i, step] of this.#plan.steps.entries()) {
      if (step.op === 'matvec' && step.outs.some(({ out }) => out === this.#plan.logits)) {
        this.headFrom = steps.length;
      }
      const fusion = gated.get(i);
      if (fusion) steps.push(this.#gated(fusion));
      else if (!absorbed.has(i)) steps.push(...lowerStep(step, this));
      steps.push(...(copies.get(i) ?? []));
    }
    return [...steps, ...this.#outputSteps()];
  }

  /** The steps with int8 activations where `quantized` asks for them. */
  quantized(quantized: boolean) {
    const steps = this.steps();
    return insertQuantize(steps, this.buffers, this.headFrom, quantized);
  }

  /** Id of a buffer of the plan, or of a new one of `length` elements. */
  buffer(name: string, length = this.#lengths.get(name)!): number {
    const known = this.#bufferIds.get(name);
    if (known !== undefined) return known;
    this.#bufferIds.set(name, this.buffers.length);
    return this.buffers.push(length) - 1;
  }

  rope(rope: RopeConfig): number {
    const key = JSON.stringify(rope);
    const known = this.#ropeIds.get(key);
    if (known !== undefined) return known;
    this.#ropeIds.set(key, this.ropes.length);
    const { scaling } = rope;
    this.ropeGrowths.push(
      scaling?.type === 'dynamic'
        ? { factor: scaling.factor, length: scaling.originalContextLength }
        : { factor: 1, length: 0 },
    );
    return this.ropes.push(ropeFrequencies(rope)) - 1;
  }

  caches() {
    return this.#plan.caches.map(({ layer, window = 0 }) => {
      const { kvHeads, headDim } = this.#plan.config.layers[layer]!.attention;
      return { kvHeads, headDim, window };
    });
  }

  /** Streams are called where their uses are, when these are known. */
  call(target: TransferTarget): ProgramStep[] {
    if (target.kind === 'stream' || !this.#callsExperts) return [];
    const { layer, routing, predicted: ahead = false } = target;
    const { topK } = this.#plan.config.layers[layer]!.experts!;
    return [{ op: 'callExperts', bank: this.#banks.get(layer)!, routing: this.buffer(routing), topK, ahead }];
  }

  /** Overlapped fetches are waited for expert by expert, by whoever uses one. */
  sync(target: TransferTarget): ProgramStep[] {
    const stalls = this.#placement.experts && this.#plan.options.transfers === 'stall';
    if (target.kind === 'stream' || !stalls) return [];
    return [{ op: 'syncExperts', bank: this.#banks.get(target.layer)! }];
  }

  /** Number of the fetched stream of a weight; −1 = in memory. */
  stream({ stream }: WeightRef): number {
    if (!this.#placement.streams.has(stream)) return -1;
    const known = this.streams.indexOf(stream);
    return known >= 0 ? known : this.streams.push(stream) - 1;
  }

  /** A matrix whose stripes count from the file's first byte, or from that of its fetched stream. */
  #tiled(ref: WeightRef): TiledMatrix {
    return this.#placement.streams.has(ref.stream) ? this.weights.relative(ref) : this.weights.tiled(ref);
  }

  output({ out, matrix, bias }: PlanOutput): MatvecOutput {
    return { out: this.buffer(out), matrix: this.#tiled(matrix), bias: this.weightOffset(bias) };
  }

  /** Where the experts of a layer are, and their matrices of these projections. */
  experts<Name extends string>(layer: number, ...projections: readonly Name[]) {
    const bank = this.weights.experts(layer, this.#plan.config.layers[layer]!.experts!.count);
    const matrices = projections.map((name) => [name, bank.matrix(`${name}_proj`)]);
    return {
      experts: bank.offsets,
      bank: this.#placement.experts ? this.#banks.get(layer)! : -1,
      ...(Object.fromEntries(matrices) as Record<Name, TiledMatrix>),
    };
  }

  /** Copies of the traced buffers into one, by the plan's step that completes them. */
  #copies(): ReadonlyMap<number, ProgramStep[]> {
    const starts = new Map<TracePoint, number>();
    let length = 0;
    for (const point of this.#trace) {
      starts.set(point, length);
      length += this.#lengths.get(point.buffer)!;
    }
    const out = length ? this.buffer('trace', length) : -1;
    const copy = (point: TracePoint): ProgramStep => ({
      op: 'copy',
      input: this.buffer(point.buffer),
      out,
      at: starts.get(point)!,
    });
    const completed = completedBy(this.#plan, this.#trace);
    return new Map([...completed].map(([step, points]) => [step, points.map(copy)]));
  }

  /** Makes `output`. What the head writes has rows for the last token only, so traces cannot be made in it. */
  #outputSteps(): ProgramStep[] {
    const logits = this.buffer(this.#plan.logits);
    this.result = logits;
    if (!this.#trace.length) return [];
    const [vocabulary, trace] = [this.buffers[logits]!, this.buffer('trace')];
    const out = this.buffer('logits and trace', vocabulary + this.buffers[trace]!);
    this.result = out;
    return [
      { op: 'copy', input: logits, out, at: 0 },
      { op: 'copy', input: trace, out, at: vocabulary },
    ];
  }

  #gated({ matvec, glu }: GatedFusion): ProgramStep {
    // Gate and up have no buffers: nothing else reads them.
    const of = (name: string) => matvec.outs.find(({ out }) => out === name)!;
    const [gate, up] = [of(glu.gate), of(glu.up)];
    return {
      op: 'gatedMatvec',
      input: this.buffer(matvec.input),
      gate: this.#tiled(gate.matrix),
      up: this.#tiled(up.matrix),
      gateBias: this.weightOffset(gate.bias),
      upBias: this.weightOffset(up.bias),
      activation: activationId(glu.activation),
      out: this.buffer(glu.out),
      stream: this.stream(matvec.outs[0]!.matrix),
    };
  }

  /** Byte offset of a plain tensor, −1 for none. */
  weightOffset(ref: WeightRef | undefined): number {
    return ref ? this.weights.plain(ref).offset : -1;
  }
}
