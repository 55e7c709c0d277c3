/** From steps in program order to phases: hazards over buffers decide the earliest phase of a step. */
import type { ModelConfig } from '../model/config.js';
import type { BufferSpec, CacheSpec, StepBody } from './types.js';

/** What a step reads and writes: buffer names, and `cache <n>` for key/value caches. */
export interface Access {
  readonly reads: readonly string[];
  readonly writes: readonly string[];
}

const cacheName = (cache: number) => `cache ${cache}`;

/** Reads and writes per operation; an in-place step has its buffer in both. */
const ACCESS: { [Op in StepBody['op']]: (step: Extract<StepBody, { op: Op }>) => Access } = {
  embed: ({ out }) => ({ reads: [], writes: [out] }),
  call: ({ target }) => ({ reads: target.kind === 'experts' ? [target.routing] : [], writes: [] }),
  sync: () => ({ reads: [], writes: [] }),
  rmsNorm: ({ input, out }) => ({ reads: [input], writes: [out] }),
  matvec: ({ input, outs }) => ({ reads: [input], writes: outs }),
  rope: ({ buffer }) => ({ reads: [buffer], writes: [buffer] }),
  cacheAppend: ({ cache, k, v }) => ({ reads: [k, v], writes: [cacheName(cache)] }),
  attend: ({ cache, q, out }) => ({ reads: [cacheName(cache), q], writes: [out] }),
  glu: ({ gate, up, out }) => ({ reads: [gate, up], writes: [out] }),
  route: ({ logits, out }) => ({ reads: [logits], writes: [out] }),
  experts: ({ input, routing, out }) => ({ reads: [input, routing], writes: [out] }),
  sum: ({ terms, out }) => ({ reads: terms, writes: [out] }),
  softcap: ({ buffer }) => ({ reads: [buffer], writes: [buffer] }),
};

/** Which buffers and caches a step reads and writes; phases follow from it. */
export function stepAccess(step: StepBody): Access {
  return (ACCESS[step.op] as (step: StepBody) => Access)(step);
}

/** A step whose phase may still move. */
export interface Scheduled {
  phase: number;
  readonly body: StepBody;
}

interface Deferrable {
  readonly step: Scheduled;
  /** The phase that consumes the output; set when the consumer is emitted. */
  consumedIn?: number;
}

/**
 * Collects buffers and steps in program order and gives each step the earliest phase that read-after-write,
 * write-after-read and write-after-write hazards allow, so that steps of one phase are independent.
 */
export class PlanBuilder {
  readonly buffers = new Map<string, BufferSpec>();
  readonly caches: CacheSpec[] = [];
  readonly steps: Scheduled[] = [];
  /** First phase of each effective layer. */
  readonly slots: number[] = [];
  /** Routings of later layers, made ahead; `phase` is the one that completes them. */
  readonly predictions: { layer: number; routing: string; phase: number }[] = [];
  readonly residuals: { layer: number; buffer: string; phase: number }[] = [];
  private readonly written = new Map<string, number>();
  private readonly read = new Map<string, number>();
  private readonly deferrable: Deferrable[] = [];
  /** Deferrable steps whose output nothing has read yet, by the buffer of the output. */
  private readonly pending = new Map<string, Deferrable>();

  constructor(
    readonly config: ModelConfig,
    /** Whether the experts of the next layer are predicted. */
    readonly predicts = false,
  ) {}

  /** Declares a buffer of `length` f32. Layers of another geometry get another buffer, named with its length. */
  buffer(name: string, length: number = this.config.hiddenDim): string {
    const known = this.buffers.get(name);
    if (known && known.length !== length) return this.buffer(`${name}:${length}`, length);
    if (!known) this.buffers.set(name, { name, length });
    return name;
  }

  /** Adds a step at its earliest phase, but not before `notBefore`; returns the phase. */
  emit(body: StepBody, notBefore = 0): number {
    const { reads, writes } = stepAccess(body);
    const after = (last: Map<string, number>, names: readonly string[]) =>
      names.map((name) => (last.get(name) ?? -1) + 1);
    const phase = Math.max(
      notBefore,
      ...after(this.written, reads),
      ...after(this.written, writes),
      ...after(this.read, writes),
    );
    for (const name of reads) this.read.set(name, Math.max(phase, this.read.get(name) ?? 0));
    for (const name of writes) this.written.set(name, phase);
    this.consume(reads, phase);
    this.steps.push({ phase, body });
    return phase;
  }

  /** Adds a step that may run in any phase from its earliest to the last before its output is read. */
  emitDeferrable(body: StepBody & { readonly out: string }): void {
    this.emit(body);
    const entry: Deferrable = { step: this.steps.at(-1)! };
    this.deferrable.push(entry);
    this.pending.set(body.out, entry);
  }

  private consume(reads: readonly string[], phase: number): void {
    for (const name of reads) {
      const entry = this.pending.get(name);
      if (entry) entry.consumedIn = phase;
      this.pending.delete(name);
    }
  }

  /**
   * Moves every deferrable step to the phase of its window that reads the fewest weights so far; of equals the
   * latest, which leaves a transfer the most time. Inputs survive the window: a ring entry is rewritten only by a
   * layer that depends on the consumer.
   */
  placeDeferrable(): void {
    const weights = this.weightsPerPhase();
    for (const { step, consumedIn } of this.deferrable) {
      const own = this.weightsOf(step.body);
      weights[step.phase]! -= own;
      let best = step.phase;
      for (let phase = step.phase; phase < (consumedIn ?? 0); phase++) {
        if (weights[phase]! <= weights[best]!) best = phase;
      }
      weights[best]! += own;
      step.phase = best;
    }
  }

  private weightsPerPhase(): number[] {
    const weights: number[] = [];
    for (const { phase, body } of this.steps) weights[phase] = (weights[phase] ?? 0) + this.weightsOf(body);
    return weights;
  }

  /** Matrix weights that a step reads. */
  private weightsOf(body: StepBody): number {
    if (body.op === 'experts') return 3 * body.topK * body.dim * this.config.hiddenDim;
    if (body.op !== 'matvec') return 0;
    const length = (name: string) => this.buffers.get(name)!.length;
    return length(body.input) * body.outs.reduce((rows, out) => rows + length(out), 0);
  }
}
