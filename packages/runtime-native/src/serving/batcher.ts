/** Runs of many sessions, put together into the steps of one engine. */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { CflowError } from '@cflow/format';
import { type Engine, type EngineSession, interrupt, interruption, type RunOptions } from '../engine.js';
import { planStep, type StepLimits } from './plan-step.js';

/** A run that is under way. */
interface Entry {
  readonly session: EngineSession;
  readonly ids: readonly number[];
  readonly signal: AbortSignal | undefined;
  passed: number;
  readonly resolve: (logits: Float32Array) => void;
  readonly reject: (error: unknown) => void;
}

/** What a step was, for figures. */
export interface Step {
  /** Sequences and tokens of it. */
  readonly sequences: number;
  readonly tokens: number;
  /** Sequences that decoded. */
  readonly decoded: number;
  readonly ms: number;
}

/** Collects the runs of sessions and passes them together, step after step, while there are any. */
export class Batcher {
  readonly #engine: Engine;
  readonly #limits: StepLimits;
  readonly #onStep: (step: Step) => void;
  #entries: Entry[] = [];
  #running = false;

  constructor(engine: Engine, limits: StepLimits, onStep: (step: Step) => void = () => undefined) {
    this.#engine = engine;
    this.#limits = limits;
    this.#onStep = onStep;
  }

  /** A sequence whose runs pass together with those of others. */
  session(session: EngineSession = this.#engine.createSession()): EngineSession {
    return {
      run: (ids, options) => this.#run(session, ids, options),
      truncate: (position) => session.truncate(position),
      fork: () => this.session(session.fork()),
      stats: () => session.stats(),
      close: () => session.close(),
    };
  }

  #run(session: EngineSession, ids: readonly number[], { signal, onLogits }: RunOptions = {}) {
    if (onLogits) throw new CflowError('USAGE', 'a batch gives the logits of the last token alone');
    interrupt(signal);
    return new Promise<Float32Array>((resolve, reject) => {
      this.#entries.push({ session, ids, signal, passed: 0, resolve, reject });
      void this.#work();
    });
  }

  async #work(): Promise<void> {
    if (this.#running) return;
    this.#running = true;
    while (this.#entries.length > 0) {
      // Sessions that have just got their logits choose their next token meanwhile, and are in the next step too.
      await nextTurn();
      await this.#step();
    }
    this.#running = false;
  }

  async #step(): Promise<void> {
    this.#dropAborted();
    const entries = [...this.#entries];
    const plan = planStep(
      entries.map(({ ids, passed }) => ({ left: ids.length - passed, decodes: ids.length === 1 })),
      this.#limits,
    );
    const members = entries.flatMap((entry, i) => (plan[i] ? [{ entry, count: plan[i] }] : []));
    if (members.length === 0) return;
    const start = performance.now();
    const outcomes = await this.#pass(members);
    const done = new Set<Entry>();
    for (const [i, { entry, count }] of members.entries()) {
      const { error, logits } = outcomes[i]!;
      entry.passed += count;
      if (!error && !logits) continue;
      done.add(entry);
      if (error) entry.reject(error);
      else entry.resolve(logits!);
    }
    this.#entries = this.#entries.filter((entry) => !done.has(entry));
    const tokens = members.reduce((sum, { count }) => sum + count, 0);
    const decoded = members.filter(({ entry }) => entry.ids.length === 1).length;
    this.#onStep({ sequences: members.length, tokens, decoded, ms: performance.now() - start });
  }

  async #pass(members: readonly { readonly entry: Entry; readonly count: number }[]) {
    try {
      return await this.#engine.runBatch(
        members.map(({ entry: { session, ids, passed, signal }, count }) => ({
          session,
          ids: ids.slice(passed, passed + count),
          logits: passed + count === ids.length,
          signal,
        })),
      );
    } catch {
      // Not one of them: the engine is closed, or a session was while it waited.
      return Promise.all(members.map(({ entry, count }) => this.#alone(entry, count)));
    }
  }

  /** What a member gives by itself. */
  async #alone({ session, ids, passed, signal }: Entry, count: number) {
    const logits = passed + count === ids.length;
    try {
      const [outcome] = await this.#engine.runBatch([
        { session, ids: ids.slice(passed, passed + count), logits, signal },
      ]);
      return outcome!;
    } catch (error) {
      return { error: error as CflowError };
    }
  }

  #dropAborted(): void {
    this.#entries = this.#entries.filter((entry) => {
      if (entry.signal?.aborted) entry.reject(interruption(entry.signal));
      return !entry.signal?.aborted;
    });
  }
}
