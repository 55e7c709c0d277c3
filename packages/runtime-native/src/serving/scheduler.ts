/** Many requests on one model: they join and leave between two steps, and each step passes all of their tokens together. */
import { CflowError } from '@cflow/format';
import { check, checkOptions, idList, whole } from '@cflow/format/node';
import { interrupt, interruption } from '../engine.js';
import type { Model } from '../model.js';
import type { GeneratedToken, GenerateOptions, Session } from '../session.js';
import { Batcher, type Step } from './batcher.js';
import { PrefixCache } from './prefix-cache.js';

/** How many requests there may be, and what a step and the memory hold. */
export interface SchedulerOptions {
  /** Requests that run at once; default 8. */
  readonly maxSequences?: number | undefined;
  /** Requests that wait for a place; more are refused. Default 64. */
  readonly maxQueue?: number | undefined;
  /** Tokens of prompts that pass in a step beside the tokens of streams, which wait for them; default 8. */
  readonly stepTokens?: number | undefined;
  /** Bytes of KV caches that are kept for requests that begin alike; default 0. */
  readonly cacheMemory?: number | undefined;
}

/** Figures of a scheduler. */
export interface SchedulerStats {
  /** Requests that run, and that wait for a place. */
  readonly running: number;
  readonly waiting: number;
  /** Sequences of the last step. */
  readonly batchSize: number;
  /** Decoded tokens of all requests together by the time of the steps that decoded them, over the latest 256 steps. */
  readonly tokensPerSecond: number;
  /** Tokens of prompts so far: those that passed, and those that kept sessions had. */
  readonly promptTokens: number;
  readonly reusedTokens: number;
  readonly generatedTokens: number;
  /** Sessions that are kept, and bytes of their KV caches. */
  readonly keptSessions: number;
  readonly keptBytes: number;
}

const DEFAULTS = { maxSequences: 8, maxQueue: 64, stepTokens: 8, cacheMemory: 0 };
const CHECKS = {
  maxSequences: whole(1, 1024),
  maxQueue: whole(0, 1_000_000),
  stepTokens: whole(2, 65_536),
  cacheMemory: whole(0, Number.MAX_SAFE_INTEGER),
};
/** Tokens of prompts in a step in which nobody decodes: a request that comes meanwhile waits for no more. */
const IDLE_TOKENS = 128;
const COUNTED_STEPS = 256;

/** Somebody in the queue. */
interface Turn {
  readonly signal: AbortSignal;
  readonly begin: () => void;
}

/**
 * Generations of many callers over one model. Each gives what `Session.generate` gives for its options, the ids for a seed
 * among them, except where its prompt begins with tokens that were generated before: those passed one by one, in a finer
 * precision than prompts.
 */
export class Scheduler {
  readonly #model: Model;
  readonly #options: typeof DEFAULTS;
  readonly #batcher: Batcher;
  readonly #prefixes: PrefixCache;
  readonly #queue: Turn[] = [];
  readonly #ending = new AbortController();
  readonly #steps: Step[] = [];
  #counts = { promptTokens: 0, reusedTokens: 0, generatedTokens: 0 };
  #running = 0;
  #closing: Promise<void> | undefined;
  #idle: (() => void) | undefined;

  /** @throws CflowError USAGE for bad options */
  constructor(model: Model, options: SchedulerOptions = {}) {
    checkOptions(options, CHECKS);
    const given = Object.entries(options).filter(([, value]) => value !== undefined);
    this.#model = model;
    this.#options = { ...DEFAULTS, ...Object.fromEntries(given) };
    const { stepTokens, cacheMemory } = this.#options;
    const limits = { stepTokens, idleTokens: IDLE_TOKENS };
    this.#batcher = new Batcher(model.engine, limits, (step) => this.#note(step));
    this.#prefixes = new PrefixCache(cacheMemory);
  }

  /**
   * Generates as `Session.generate` of a new session, beside all others. Leaving the loop, or an abort, frees the place.
   * @throws CflowError as `Session.generate`; LIMIT_EXCEEDED if the queue is full; INTERRUPTED by the signal or by `close`
   */
  async *generate(
    options: GenerateOptions & { readonly ids: readonly number[] },
  ): AsyncGenerator<GeneratedToken, void, void> {
    const { ids } = options;
    check('ids', ids, idList);
    const signals = options.signal ? [options.signal, this.#ending.signal] : [this.#ending.signal];
    const signal = AbortSignal.any(signals);
    await this.#enter(signal);
    let session: Session | undefined;
    try {
      const prefix = await this.#prefixes.take(ids);
      const reused = prefix?.reused ?? 0;
      session = prefix?.session ?? this.#model.adopt(this.#batcher.session());
      this.#counts.reusedTokens += reused;
      for await (const token of session.generate({ ...options, ids: ids.slice(reused), signal })) {
        this.#counts.generatedTokens++;
        yield token;
      }
    } finally {
      this.#counts.promptTokens += session?.stats().promptTokens ?? 0;
      if (session) await this.#giveBack(session);
      this.#leave();
    }
  }

  /** Figures so far. */
  stats(): SchedulerStats {
    const decoding = this.#steps.filter(({ decoded }) => decoded > 0);
    const ms = decoding.reduce((sum, step) => sum + step.ms, 0);
    const decoded = decoding.reduce((sum, step) => sum + step.decoded, 0);
    return {
      running: this.#running,
      waiting: this.#queue.length,
      batchSize: this.#steps.at(-1)?.sequences ?? 0,
      tokensPerSecond: ms > 0 ? (1000 * decoded) / ms : 0,
      ...this.#counts,
      keptSessions: this.#prefixes.size,
      keptBytes: this.#prefixes.bytes,
    };
  }

  /** Takes no more requests, lets those that run or wait end, or aborts them, and frees what is kept. The model stays open. */
  close({ abort = false }: { readonly abort?: boolean } = {}): Promise<void> {
    if (abort) this.#ending.abort();
    this.#closing ??= this.#drain();
    return this.#closing;
  }

  /** As `close` with `abort`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close({ abort: true });
  }

  async #drain(): Promise<void> {
    if (this.#running > 0 || this.#queue.length > 0)
      await new Promise<void>((resolve) => {
        this.#idle = resolve;
      });
    await this.#prefixes.close();
  }

  /** Waits for a place. */
  #enter(signal: AbortSignal): Promise<void> {
    if (this.#closing) throw new CflowError('USAGE', 'the scheduler is closed');
    interrupt(signal);
    const { maxSequences, maxQueue } = this.#options;
    if (this.#running < maxSequences) {
      this.#running++;
      return Promise.resolve();
    }
    if (this.#queue.length >= maxQueue) {
      throw new CflowError('LIMIT_EXCEEDED', `${this.#queue.length} requests are waiting`, {
        field: 'maxQueue',
        value: this.#queue.length + 1,
        limit: maxQueue,
        remedy: 'try again later',
      });
    }
    return new Promise((resolve, reject) => {
      const abort = () => {
        this.#queue.splice(this.#queue.indexOf(turn), 1);
        reject(interruption(signal));
        this.#tellIdle();
      };
      const begin = () => {
        signal.removeEventListener('abort', abort);
        resolve();
      };
      const turn = { signal, begin };
      signal.addEventListener('abort', abort, { once: true });
      this.#queue.push(turn);
    });
  }

  /** Gives the place to the next in the queue. */
  #leave(): void {
    const next = this.#queue.shift();
    if (next) next.begin();
    else this.#running--;
    this.#tellIdle();
  }

  #tellIdle(): void {
    if (this.#running === 0 && this.#queue.length === 0) this.#idle?.();
  }

  async #giveBack(session: Session): Promise<void> {
    if (this.#options.cacheMemory > 0 && !this.#ending.signal.aborted) {
      await this.#prefixes.keep(session).catch(() => session.close());
    } else await session.close();
  }

  #note(step: Step): void {
    this.#steps.push(step);
    if (this.#steps.length > COUNTED_STEPS) this.#steps.shift();
  }
}
