/** Which requests may run: so many at once, none after the server began to end, each for so long. */
import type { FastifyReply } from 'fastify';
import { ApiError, overloaded, shuttingDown, timedOut } from './errors.js';

/** Limits of an admission. */
export interface AdmissionOptions {
  /** Requests that run or wait. */
  readonly requests: number;
  /** Milliseconds that a request may take. */
  readonly requestMs: number;
  /** Milliseconds that a client which reads nothing gets after its request was ended. */
  readonly stallMs: number;
  /** Seconds that a refused client is told to wait. */
  readonly retryAfter: () => number;
}

/** The client went away: nobody gets an answer. */
export class ClientGone extends ApiError {
  constructor() {
    super('the client closed the connection', { status: 499, type: 'client_error' });
  }
}

/** Admits requests, and ends them. */
export class Admission {
  readonly #options: AdmissionOptions;
  readonly #running = new Set<AbortController>();
  #draining = false;
  #onEmpty: (() => void) | undefined;

  constructor(options: AdmissionOptions) {
    this.#options = options;
  }

  /** Requests that run or wait. */
  get size(): number {
    return this.#running.size;
  }

  get draining(): boolean {
    return this.#draining;
  }

  /** @throws ApiError 429 or 503 where a request would not be admitted now */
  check(): void {
    if (this.#draining) throw shuttingDown();
    if (this.#running.size >= this.#options.requests)
      throw overloaded(
        `${this.#options.requests} requests run or wait already (--max-queue)`,
        this.#options.retryAfter(),
      );
  }

  /**
   * Admits a request until its answer is sent or its client is gone; the signal is aborted when it must end.
   * @throws ApiError as `check`
   */
  enter(reply: FastifyReply): AbortSignal {
    this.check();
    const { requestMs, stallMs } = this.#options;
    const abort = new AbortController();
    this.#running.add(abort);
    let timer = setTimeout(() => {
      abort.abort(timedOut(requestMs / 1000));
      timer = setTimeout(() => reply.raw.destroy(), stallMs);
    }, requestMs);
    reply.raw.once('close', () => {
      clearTimeout(timer);
      abort.abort(new ClientGone());
      this.#running.delete(abort);
      if (this.#running.size === 0) this.#onEmpty?.();
    });
    return abort.signal;
  }

  /** Admits nobody any more, and resolves when the running requests have ended; those that take longer are ended. */
  async drain(ms: number): Promise<void> {
    this.#draining = true;
    if (this.#running.size === 0) return;
    const timer = setTimeout(() => {
      for (const abort of this.#running) abort.abort(shuttingDown());
    }, ms);
    await new Promise<void>((resolve) => {
      this.#onEmpty = resolve;
    });
    clearTimeout(timer);
  }
}
