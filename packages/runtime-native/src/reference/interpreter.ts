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
}

/** Executes a plan, token by token, over weights in f32. Holds what one sequence needs: buffers and key/value caches. */
export class Interpreter {
  readonly plan: ExecutionPlan;
  readonly #buffers: ReadonlyMap<string, Float32Array>;
  readonly #state: StepState;
  readonly #phases: PlanStep[][];
  readonly #phasesWithoutLogits: PlanStep[][];
  #turnStart = performance.now();

  constructor(plan: ExecutionPlan, weights: WeightStore) {
    this.plan = plan;
    this.#buffers = new Map(plan.buffers.map(({ name, length }) => [name, new Float32Array(length)]));
    this.#phases = byPhase(plan.steps);
    this.#phasesWithoutLogits = byPhase(plan.steps.filter((step) => !makesLogits(step, plan.logits)));
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

  /** Runs one token through the plan. After an error the sequence is unusable: caches may lack a row. */
  async step(token: number, { logits = true, onPhase }: StepOptions = {}): Promise<void> {
    this.#state.token = token;
    for (const steps of logits ? this.#phases : this.#phasesWithoutLogits) {
      for (const step of steps) {
        const pending = runStep(step, this.#state);
        if (pending) await pending;
      }
      onPhase?.(steps[0]!.phase);
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

function byPhase(steps: readonly PlanStep[]): PlanStep[][] {
  const phases = new Map<number, PlanStep[]>();
  for (const step of steps) {
    const phase = phases.get(step.phase);
    if (phase) phase.push(step);
    else phases.set(step.phase, [step]);
  }
  return [...phases.values()];
}
