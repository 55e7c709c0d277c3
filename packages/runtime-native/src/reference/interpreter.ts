import { setImmediate as nextTurn } from 'node:timers/promises';
import { CflowError, type ExecutionPlan, type PlanStep } from '@cflow/format';
import type { WeightStore } from '../weights.js';
import { KvCache } from './kv-cache.js';
import { runStep, type StepState } from './steps.js';

/** The event loop gets a turn when a run of phases has taken this long, in milliseconds. */
const LONGEST_TURN_MS = 10;

/** What of a token is computed, and who sees it. */
export interface StepOptions {
  /** Compute logits; false skips the LM head. Default true. */
  readonly logits?: boolean;
  /** Called when all steps of a phase have run; buffers may be read but not kept. */
  readonly onPhase?: (phase: number) => void;
  /** Called when a step has run, with its index in the plan; what it changes in buffers, later steps read. */
  readonly onStep?: (step: number) => void;
}

/** A step and its index in the plan. */
interface NumberedStep {
  readonly step: PlanStep;
  readonly index: number;
}

/** Executes a plan, token by token, over weights in f32. Holds what one sequence needs: buffers and key/value caches. */
export class Interpreter {
  readonly plan: ExecutionPlan;
  readonly #weights: WeightStore;
  readonly #buffers: ReadonlyMap<string, Float32Array>;
  readonly #state: StepState;
  readonly #phases: NumberedStep[][];
  readonly #phasesWithoutLogits: NumberedStep[][];
  #turnStart = performance.now();

  constructor(plan: ExecutionPlan, weights: WeightStore) {
    this.plan = plan;
    this.#weights = weights;
    this.#buffers = new Map(plan.buffers.map(({ name, length }) => [name, new Float32Array(length)]));
    const steps = plan.steps.map((step, index) => ({ step, index }));
    this.#phases = byPhase(steps);
    this.#phasesWithoutLogits = byPhase(steps.filter(({ step }) => !makesLogits(step, plan.logits)));
    this.#state = {
      token: 0,
      position: 0,
      weights,
      caches: new Map(plan.caches.map(({ cache, width, window }) => [cache, new KvCache(width, window)])),
      transfers: new Map(),
      buffer: (name) => this.buffer(name),
    };
  }

  /** Tokens that have passed. */
  get position(): number {
    return this.#state.position;
  }

  /** The live contents of a buffer. @throws CflowError INTERNAL if the plan has none of that name */
  buffer(name: string): Float32Array {
    const found = this.#buffers.get(name);
    if (!found) throw new CflowError('INTERNAL', `the plan uses buffer ${name}, which it does not declare`);
    return found;
  }

  /** Logits after the last token, [vocabSize]; overwritten by the next. */
  get logits(): Float32Array {
    return this.buffer(this.plan.logits);
  }

  /** Bytes of the key/value caches as allocated. */
  get cacheBytes(): number {
    return [...this.#state.caches.values()].reduce((sum, c) => sum + 8 * c.capacity * c.width, 0);
  }

  /** Goes back to the first `position` tokens, or to 0 where a ring has lost what the next token sees; returns which. */
  truncate(position: number): number {
    const caches = [...this.#state.caches.values()];
    const reached = caches.every((cache) => cache.reaches(position)) ? position : 0;
    for (const cache of caches) cache.truncate(reached);
    this.#state.transfers.clear();
    this.#state.position = reached;
    return reached;
  }

  /** A second sequence with the same tokens, whose caches are copies. */
  fork(): Interpreter {
    const fork = new Interpreter(this.plan, this.#weights);
    for (const [id, cache] of this.#state.caches) fork.#state.caches.get(id)!.copyFrom(cache);
    fork.#state.position = this.position;
    return fork;
  }

  /** Runs one token through the plan. After an error caches may lack a row: `truncate` makes the sequence usable again. */
  async step(token: number, { logits = true, onPhase, onStep }: StepOptions = {}): Promise<void> {
    this.#state.token = token;
    for (const steps of logits ? this.#phases : this.#phasesWithoutLogits) {
      for (const { step, index } of steps) {
        const pending = runStep(step, this.#state);
        if (pending) await pending;
        onStep?.(index);
      }
      onPhase?.(steps[0]!.step.phase);
      await this.#breathe();
    }
    this.#state.position++;
  }

  async #breathe(): Promise<void> {
    if (performance.now() - this.#turnStart < LONGEST_TURN_MS) return;
    await nextTurn();
    this.#turnStart = performance.now();
  }
}

function makesLogits(step: PlanStep, logits: string): boolean {
  return (
    (step.op === 'matvec' && step.outs.some(({ out }) => out === logits)) ||
    (step.op === 'softcap' && step.buffer === logits)
  );
}

function byPhase(steps: readonly NumberedStep[]): NumberedStep[][] {
  const phases = new Map<number, NumberedStep[]>();
  for (const numbered of steps) {
    const { phase } = numbered.step;
    const known = phases.get(phase);
    if (known) known.push(numbered);
    else phases.set(phase, [numbered]);
  }
  return [...phases.values()];
}
