/** Lowers a plan over a file to the program of the native engine: names become indices and byte offsets. */
import {
  ACTIVATIONS,
  type Activation,
  alignUp,
  DTYPES,
  type Dtype,
  type ExecutionPlan,
  type ModelFile,
  type PlanStep,
  type RopeConfig,
  type StepOp,
  type TransferTarget,
  type WeightRef,
} from '@cflow/format';
import { ropeFrequencies } from '../reference/math.js';
import { nativeAccess, stepKind } from './access.js';
import { type GatedFusion, gatedFusions } from './fuse.js';
import type { NativeProgram, NativeStep, RopeGrowth } from './program.js';
import { insertQuantize } from './quantize-steps.js';
import { schedule } from './schedule.js';
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
 * streams follow from the stages, for a stream is fetched as soon as there is room for it.
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
    ...nativeAccess(step, quantized),
    kind: stepKind(step),
    late: placement.experts && !stalls && isLate(step, hidden),
  }));
  const scheduled = schedule(schedulable, { delayAware: options.delayAware, headFrom });
  const { stages, order, liveStreams, ...placed } = placeTransfers(steps, scheduled, stalls);
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
    stages,
    headStage: stages.findIndex(({ parallel }) => parallel.includes(headFrom)),
    output: lowering.output,
    vocabSize: plan.config.vocabSize,
    contextLength: plan.config.contextLength,
  };
  return { program, liveStreams };
}

type StepOf<Op extends StepOp> = Extract<PlanStep, { op: Op }>;
type Lower<Op extends StepOp> = (step: StepOf<Op>, at: Lowering) => NativeStep[];

const activationId = (activation: Activation) => ACTIVATIONS.indexOf(activation);

const LOWER: { readonly [Op in StepOp]: Lower<Op> } = {
  call: ({ target }, at) => at.call(target),
  sync: ({ target }, at) => at.sync(target),
  embed: ({ weight, scale, out }, at) => [
    { op: 'embed', matrix: at.weights.tiled(weight), scale, out: at.buffer(out) },
  ],
  rmsNorm: ({ input, weight, groupSize, eps, out }, at) => {
    const plain = weight && at.weights.plain(weight);
    return [
      {
        op: 'rmsNorm',
        input: at.buffer(input),
        weight: plain?.offset ?? -1,
        weightLength: plain?.shape[0] ?? groupSize,
        groupSize,
        eps,
        out: at.buffer(out),
      },
    ];
  },
  matvec: (step, at) => at.matvec(step),
  rope: ({ buffer, headDim, rope }, at) => [
    { op: 'rope', buffer: at.buffer(buffer), headDim, table: at.rope(rope) },
  ],
  cacheAppend: ({ cache, k, v }, at) => [{ op: 'append', cache, k: at.buffer(k), v: at.buffer(v) }],
  attend: ({ cache, q, out, heads, scale, softcap = 0, slidingWindow = 0 }, at) => [
    {
      op: 'attend',
      cache,
      q: at.buffer(q),
      out: at.buffer(out),
      heads,
      scale,
      softcap,
      window: slidingWindow,
    },
  ],
  glu: ({ gate, up, upFrom = 0, activation, out }, at) => [
    {
      op: 'glu',
      gate: at.buffer(gate),
      up: at.buffer(up),
      upFrom,
      activation: activationId(activation),
      out: at.buffer(out),
    },
  ],
  route: ({ logits, topK, normalize, scale, out }, at) => [
    {
      op: 'route',
      logits: at.buffer(logits),
      topK,
      normalize,
      scale: at.plainOffset(scale),
      out: at.buffer(out),
    },
  ],
  experts: (step, at) => at.experts(step),
  sum: ({ terms, coefficients, scale, out }, at) => [
    {
      op: 'sum',
      terms: terms.map((term) => at.buffer(term)),
      coefficients,
      scale: at.plainOffset(scale),
      out: at.buffer(out),
    },
  ],
  softcap: ({ buffer, cap }, at) => [{ op: 'softcap', buffer: at.buffer(buffer), cap }],
};

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
  output = -1;
  readonly #plan: ExecutionPlan;
  readonly #lengths: ReadonlyMap<string, number>;
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
    this.weights = new WeightMap(file);
    this.#trace = trace;
  }

  steps(): NativeStep[] {
    const { gated, absorbed } = gatedFusions(this.#plan.steps, ({ weights }) =>
      weights.every((ref) => !this.weights.isPlain(ref)),
    );
    const copies = this.#copies();
    const steps: NativeStep[] = [];
    for (const [i, step] of this.#plan.steps.entries()) {
      if (step.op === 'matvec' && step.outs.includes(this.#plan.logits)) this.headFrom = steps.length;
      const fusion = gated.get(i);
      if (fusion) steps.push(this.#gated(fusion));
      else if (!absorbed.has(i)) steps.push(...(LOWER[step.op] as Lower<StepOp>)(step, this));
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
  call(target: TransferTarget): NativeStep[] {
    if (target.kind === 'stream' || !this.#callsExperts) return [];
    const { layer, routing, predicted: ahead = false } = target;
    const { topK } = this.#plan.config.layers[layer]!.experts!;
    return [{ op: 'callExperts', bank: this.#banks.get(layer)!, routing: this.buffer(routing), topK, ahead }];
  }

  /** Overlapped fetches are waited for expert by expert, by whoever uses one. */
  sync(target: TransferTarget): NativeStep[] {
    const stalls = this.#placement.experts && this.#plan.options.transfers === 'stall';
    if (target.kind === 'stream' || !stalls) return [];
    return [{ op: 'syncExperts', bank: this.#banks.get(target.layer)! }];
  }

  /** Number of a fetched stream; −1 = in memory. */
  #stream(ref: WeightRef): number {
    const { stream } = ref;
    if (!this.#placement.streams.has(stream)) return -1;
    const known = this.streams.indexOf(stream);
    return known >= 0 ? known : this.streams.push(stream) - 1;
  }

  #tiled(ref: WeightRef) {
    return this.#placement.streams.has(ref.stream) ? this.weights.relative(ref) : this.weights.tiled(ref);
  }

  matvec({ input, weights, biases, outs }: StepOf<'matvec'>): NativeStep[] {
    const from = this.buffer(input);
    const all = weights.map((ref, i) => ({
      ref,
      bias: this.plainOffset(biases?.[i]),
      out: this.buffer(outs[i]!),
    }));
    const plain = all.filter(({ ref }) => this.weights.isPlain(ref));
    const tiled = all.filter((entry) => !plain.includes(entry));
    const steps: NativeStep[] = plain.map(({ ref, out }) => {
      const { offset, shape } = this.weights.plain(ref);
      return { op: 'plainMatvec', input: from, weight: offset, rows: shape[0]!, cols: shape[1]!, out };
    });
    if (tiled.length) {
      const matrices = tiled.map(({ ref, bias, out }) => ({ matrix: this.#tiled(ref), bias, out }));
      steps.push({ op: 'matvec', input: from, outs: matrices, stream: this.#stream(tiled[0]!.ref) });
    }
    return steps;
  }

  experts({ layer, input, routing, topK, dim, activation, out }: StepOf<'experts'>): NativeStep[] {
    const bank = this.weights.experts(layer, this.#plan.config.layers[layer]!.experts!.count);
    const length = topK * alignUp(dim, PIECE);
    const hidden = this.buffer(`expertHidden of ${routing}:${length}`, length);
    const number = this.#banks.get(layer)!;
    const fetched = this.#placement.experts ? number : -1;
    const chosen = { routing: this.buffer(routing), topK, dim, experts: bank.offsets, bank: fetched };
    return [
      {
        op: 'expertsUp',
        ...chosen,
        input: this.buffer(input),
        activation: activationId(activation),
        hidden,
        gate: bank.matrix('gate_proj'),
        up: bank.matrix('up_proj'),
      },
      { op: 'expertsDown', ...chosen, hidden, out: this.buffer(out), down: bank.matrix('down_proj') },
    ];
  }

  /** Copies of the traced buffers into one, by the plan's step that completes them. */
  #copies(): ReadonlyMap<number, NativeStep[]> {
    const starts = new Map<TracePoint, number>();
    let length = 0;
    for (const point of this.#trace) {
      starts.set(point, length);
      length += this.#lengths.get(point.buffer)!;
    }
    const out = length ? this.buffer('trace', length) : -1;
    const copy = (point: TracePoint): NativeStep => ({
      op: 'copy',
      input: this.buffer(point.buffer),
      out,
      at: starts.get(point)!,
    });
    const completed = completedBy(this.#plan, this.#trace);
    return new Map([...completed].map(([step, points]) => [step, points.map(copy)]));
  }

  /** Makes `output`. What the head writes has rows for the last token only, so traces cannot be made in it. */
  #outputSteps(): NativeStep[] {
    const logits = this.buffer(this.#plan.logits);
    this.output = logits;
    if (!this.#trace.length) return [];
    const [vocabulary, trace] = [this.buffers[logits]!, this.buffer('trace')];
    const out = this.buffer('logits and trace', vocabulary + this.buffers[trace]!);
    this.output = out;
    return [
      { op: 'copy', input: logits, out, at: 0 },
      { op: 'copy', input: trace, out, at: vocabulary },
    ];
  }

  #gated({ matvec, glu }: GatedFusion): NativeStep {
    const of = (out: string) => matvec.outs.indexOf(out);
    const tiled = (out: string) => this.#tiled(matvec.weights[of(out)]!);
    const bias = (out: string) => this.plainOffset(matvec.biases?.[of(out)]);
    return {
      op: 'gatedMatvec',
      input: this.buffer(matvec.input),
      gate: tiled(glu.gate),
      up: tiled(glu.up),
      gateBias: bias(glu.gate),
      upBias: bias(glu.up),
      activation: activationId(glu.activation),
      out: this.buffer(glu.out),
      stream: this.#stream(matvec.weights[0]!),
    };
  }

  /** Byte offset of a plain tensor, −1 for none. */
  plainOffset(ref: WeightRef | undefined): number {
    return ref ? this.weights.plain(ref).offset : -1;
  }
}
