/** What answers requests: many sequences through one model. */
import type { EngineStats, GeneratedToken, GenerateOptions, Model } from '@cflow/runtime-native';
import { overloaded } from './errors.js';

/** How many sequences there are, and what the engine did so far. */
export interface BackendStats {
  /** Sequences that are being generated. */
  readonly running: number;
  /** Sequences that wait for a place. */
  readonly waiting: number;
  /** Prompt tokens so far that did not have to be computed, as another sequence began with them. */
  readonly reusedTokens: number;
  /** Figures of the engine. */
  readonly engine: EngineStats;
}

/** Generates for many at once. */
export interface Backend {
  /** As Session.generate of a new session; waits for a place. @throws ApiError 429 where too many wait */
  generate(options: GenerateOptions): AsyncGenerator<GeneratedToken, void, void>;
  stats(): BackendStats;
  close(): Promise<void>;
}

/** How many sequences at once. */
export interface BackendOptions {
  readonly maxSequences: number;
  /** Sequences that may wait. */
  readonly maxQueue: number;
}

/** Sessions of a model, so many at once; the others wait in the order in which they came. */
export class SessionBackend implements Backend {
  readonly #model: Model;
  readonly #options: BackendOptions;
  readonly #waiting: (() => void)[] = [];
  #running = 0;

  constructor(model: Model, options: BackendOptions) {
    this.#model = model;
    this.#options = options;
  }

  async *generate(options: GenerateOptions): AsyncGenerator<GeneratedToken, void, void> {
    await this.#enter(options.signal);
    try {
      const session = this.#model.createSession();
      try {
        yield* session.generate(options);
      } finally {
        await session.close();
      }
    } finally {
      this.#leave();
    }
  }

  stats(): BackendStats {
    // Those of an engine are asked of a session.
    const session = this.#model.createSession();
    const engine = session.stats();
    void session.close();
    return { running: this.#running, waiting: this.#waiting.length, reusedTokens: 0, engine };
  }

  async close(): Promise<void> {
    await this.#model.close();
  }

  async #enter(signal: AbortSignal | undefined): Promise<void> {
    signal?.throwIfAborted();
    if (this.#running < this.#options.maxSequences) {
      this.#running++;
      return;
    }
    if (this.#waiting.length >= this.#options.maxQueue) throw overloaded('the queue of the model is full', 1);
    await new Promise<void>((resolve, reject) => {
      const enter = () => {
        signal?.removeEventListener('abort', leave);
        resolve();
      };
      const leave = () => {
        this.#waiting.splice(this.#waiting.indexOf(enter), 1);
        reject(signal!.reason);
      };
      signal?.addEventListener('abort', leave, { once: true });
      this.#waiting.push(enter);
    });
  }

  /** The place goes to whoever waits longest. */
  #leave(): void {
    const next = this.#waiting.shift();
    if (next) next();
    else this.#running--;
  }
}
