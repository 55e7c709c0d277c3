/** Requests to the Hub and to the hosts that it sends us to: retried, timed, and with the token for the Hub alone. */
import { CflowError } from '@cflow/format';
import { type Dispatcher, type Response as HubResponse, fetch as request } from 'undici';
import { throwIfInterrupted } from '../pipeline/interrupt.js';
import type { HubEnvironment } from './environment.js';
import { type HubPlace, placeName, statusError, Transient } from './errors.js';
import { environmentDispatcher, proxyFor } from './proxy.js';

/** Attempts after the first, of which each waits twice as long as the one before. */
const RETRIES = 6;
/** The same, as long as nothing has answered at all: a network that is down is down in a minute too. */
const FIRST_CONTACT_RETRIES = 2;
/** No name server knows the host, or none can be asked: another attempt says the same. */
const NAME_NOT_FOUND = new Set(['ENOTFOUND', 'EAI_AGAIN']);
const FIRST_WAIT_MS = 500;
/** The Hub counts requests over five minutes. */
const MAX_WAIT_MS = 5 * 60 * 1000;
/** Of an answer of the API: a page of a listing is some hundred kilobytes. */
const MAX_DOCUMENT_BYTES = 64 * 1024 * 1024;
const RETRIED = new Set([408, 425, 429, 500, 502, 503, 504]);

/** A request that failed and is sent again. */
export interface Retry {
  /** Why, e.g. `no connection to huggingface.co: ENOTFOUND`. */
  readonly problem: string;
  /** Which attempt comes now, from 2, and the last that there may be. */
  readonly attempt: number;
  readonly attempts: number;
  /** Until then, in milliseconds. */
  readonly waitMs: number;
}

export interface ClientOptions {
  readonly signal?: AbortSignal | undefined;
  /** Of the first repetition, in milliseconds. */
  readonly firstWaitMs?: number | undefined;
  /** Before each wait for another attempt. */
  readonly onRetry?: ((retry: Retry) => void) | undefined;
}

/** A response whose body ends the request when it is silent for too long. */
export interface Answer {
  readonly response: HubResponse;
  /** The body, once. @throws Transient if the connection breaks or falls silent */
  chunks(): AsyncGenerator<Uint8Array>;
  /** Ends the request; the connection is not used again if the body was not read. */
  cancel(): void;
}

export class HubClient {
  readonly environment: HubEnvironment;
  readonly #signal: AbortSignal | undefined;
  readonly #firstWaitMs: number;
  readonly #onRetry: ClientOptions['onRetry'];
  readonly #dispatcher: Dispatcher = environmentDispatcher();
  /** Whether anything has answered yet. */
  #reached = false;

  constructor(environment: HubEnvironment, options: ClientOptions = {}) {
    this.environment = environment;
    this.#signal = options.signal;
    this.#firstWaitMs = options.firstWaitMs ?? FIRST_WAIT_MS;
    this.#onRetry = options.onRetry;
  }

  place(repo: string, revision: string, file?: string): HubPlace {
    const { endpoint, token } = this.environment;
    return {
      endpoint,
      repo,
      revision,
      hasToken: token !== undefined,
      ...(file === undefined ? {} : { file }),
    };
  }

  /** One attempt; redirects are the caller's. @throws Transient, CflowError INTERRUPTED */
  async send(url: string, headers: Readonly<Record<string, string>> = {}): Promise<Answer> {
    const timed = new TimedRequest(this.environment.timeoutMs, this.#signal);
    try {
      const response = await request(url, {
        redirect: 'manual',
        dispatcher: this.#dispatcher,
        // A compressed body would make ranges and lengths meaningless.
        headers: { 'accept-encoding': 'identity', ...this.#authorization(url), ...headers },
        signal: timed.signal,
      });
      this.#reached = true;
      return { response, chunks: () => timed.chunks(response), cancel: () => timed.end() };
    } catch (cause) {
      timed.end();
      throwIfInterrupted(this.#signal);
      throw noConnection(url, cause);
    }
  }

  /** A small document of the API, for `@huggingface/hub`: complete, or an error that names `place`. */
  documents(place: HubPlace): typeof fetch {
    return async (input) => {
      const url = input instanceof Request ? input.url : String(input);
      return this.retried(place, async () => {
        const answer = await this.#followed(url);
        const { response, chunks } = answer;
        orCancel(answer, () => refuse(place, response));
        const parts: Uint8Array[] = [];
        let bytes = 0;
        for await (const chunk of chunks()) {
          bytes += chunk.length;
          if (bytes > MAX_DOCUMENT_BYTES) throw tooLong(place);
          parts.push(chunk);
        }
        const { status, headers } = response;
        return new Response(Buffer.concat(parts), { status, headers: Object.fromEntries(headers) });
      });
    };
  }

  async #followed(url: string): Promise<Answer> {
    let at = url;
    for (let hops = 0; hops < MAX_REDIRECTS; hops++) {
      const answer = await this.send(at);
      const next = orCancel(answer, () => redirection(answer.response, at));
      if (next === undefined) return answer;
      answer.cancel();
      at = next;
    }
    throw new CflowError('NOT_READABLE', `more than ${MAX_REDIRECTS} redirects`, {
      file: new URL(url).origin,
    });
  }

  /** The result of the first attempt that is not Transient. @throws CflowError NOT_READABLE after too many */
  async retried<T>(place: HubPlace, attempt: () => Promise<T>): Promise<T> {
    for (let failures = 0; ; failures++) {
      try {
        return await attempt();
      } catch (error) {
        await this.pause(place, failures, error);
      }
    }
  }

  /** Waits before the next attempt. @throws `error` unless Transient, CflowError NOT_READABLE if it is one too many */
  async pause(place: HubPlace, failures: number, error: unknown): Promise<void> {
    throwIfInterrupted(this.#signal);
    if (!(error instanceof Transient)) throw error;
    // Many clients that were cut off together must not come back together.
    const backoff = this.#firstWaitMs * 2 ** failures * (0.75 + Math.random() / 2);
    const waitMs = error.waitMs ?? backoff;
    const retries = this.#retriesAfter(error);
    if (failures >= retries || waitMs > MAX_WAIT_MS) throw exhausted(place, failures, error);
    const { message: problem } = error;
    this.#onRetry?.({ problem, attempt: failures + 2, attempts: retries + 1, waitMs });
    await sleep(waitMs, this.#signal);
    throwIfInterrupted(this.#signal);
  }

  /** A network that is down is not waited for, unless it was up before. */
  #retriesAfter({ code }: Transient): number {
    if (this.#reached || code === undefined) return RETRIES;
    return NAME_NOT_FOUND.has(code) ? 0 : FIRST_CONTACT_RETRIES;
  }

  #authorization(url: string): Record<string, string> {
    const { endpoint, token } = this.environment;
    const same = new URL(url).origin === new URL(endpoint).origin;
    return token && same ? { authorization: `Bearer ${token}` } : {};
  }
}

export const MAX_REDIRECTS = 5;

/** Looks at an answer; if that throws, ends the request, which would keep the process alive until it counts as silent. */
export function orCancel<T>(answer: Answer, look: () => T): T {
  try {
    return look();
  } catch (error) {
    answer.cancel();
    throw error;
  }
}

/** Where a response sends us, or undefined. @throws CflowError NOT_READABLE from https to http */
export function redirection(response: HubResponse, from: string): string | undefined {
  const location = response.headers.get('location');
  if (response.status < 300 || response.status >= 400 || location === null) return undefined;
  const to = URL.canParse(location, from) ? new URL(location, from) : undefined;
  const allowed = to?.protocol === 'https:' || (to?.protocol === 'http:' && from.startsWith('http:'));
  if (to && allowed) return to.href;
  // The query of a signed address is a secret.
  throw new CflowError('NOT_READABLE', `a redirect to ${to ? `${to.origin}${to.pathname}` : 'no address'}`, {
    file: new URL(from).origin,
    remedy: 'addresses of files must be https',
  });
}

/** @throws Transient for a status worth another attempt, CflowError NOT_READABLE for any other that is no success */
export function refuse(place: HubPlace, response: HubResponse): void {
  if (response.ok) return;
  if (!RETRIED.has(response.status)) throw statusError(place, response);
  const waitMs = retryAfter(response.headers.get('retry-after'));
  throw new Transient(`the server answers ${response.status} ${response.statusText}`.trim(), { waitMs });
}

/** Seconds or a date, as milliseconds from now. */
function retryAfter(value: string | null): number | undefined {
  if (value === null) return undefined;
  const ms = /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return Number.isNaN(ms) ? undefined : Math.max(0, ms);
}

function exhausted(place: HubPlace, failures: number, error: Transient): CflowError {
  const attempts = failures === 0 ? '' : `, ${failures + 1} times`;
  const asked = error.waitMs === undefined ? '' : `; it asks to wait ${Math.ceil(error.waitMs / 1000)} s`;
  const cached = 'what is in the cache is kept, and HF_HUB_OFFLINE=1 uses it alone';
  return new CflowError('NOT_READABLE', `${error.message}${attempts}${asked}`, {
    file: placeName(place),
    remedy:
      error.code === undefined
        ? `try again later; ${cached}`
        : `check the network, HF_ENDPOINT and HTTPS_PROXY; ${cached}`,
    cause: error,
  });
}

function noConnection(url: string, cause: unknown): Transient {
  const proxy = proxyFor(url);
  const by = proxy === undefined ? '' : ` (HTTPS_PROXY or HTTP_PROXY names ${proxy})`;
  const reason = reasonOf(cause);
  // A server that is silent was reached; only the system gives codes.
  const code = /^E[A-Z_]+$/.test(reason) ? { code: reason } : {};
  return new Transient(`no connection to ${new URL(url).host}${by}: ${reason}`, code);
}

/** The code of a network error, or its message: undici wraps what Node reports, and what it reports of several addresses. */
function reasonOf(cause: unknown): string {
  const { code, message, cause: inner } = cause as NodeJS.ErrnoException;
  if (inner instanceof Error) return reasonOf(inner);
  if (cause instanceof AggregateError && !code && cause.errors.length > 0) return reasonOf(cause.errors[0]);
  // The codes of undici itself say less than its messages.
  return (code?.startsWith('UND_') ? message : code) ?? message ?? String(cause);
}

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener('abort', done, { once: true });
  });
}

/** A request that ends when it is silent for too long, or with the user's patience. */
class TimedRequest {
  readonly #abort = new AbortController();
  readonly #timeoutMs: number;
  readonly #user: AbortSignal | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(timeoutMs: number, user: AbortSignal | undefined) {
    this.#timeoutMs = timeoutMs;
    this.#user = user;
    user?.addEventListener('abort', this.#onAbort, { once: true });
    if (user?.aborted) this.#abort.abort();
    this.#heard();
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  readonly #onAbort = () => this.#abort.abort();

  #heard(): void {
    clearTimeout(this.#timer);
    const silent = () => this.#abort.abort(new Error(`silent for ${this.#timeoutMs / 1000} s`));
    this.#timer = setTimeout(silent, this.#timeoutMs);
  }

  async *chunks({ body }: HubResponse): AsyncGenerator<Uint8Array> {
    try {
      for await (const chunk of (body ?? []) as AsyncIterable<Uint8Array>) {
        // While whoever asked works on it, nobody waits for the server.
        clearTimeout(this.#timer);
        yield chunk;
        this.#heard();
      }
    } catch (cause) {
      throwIfInterrupted(this.#user);
      throw new Transient(`the connection broke: ${reasonOf(cause)}`, { cause });
    } finally {
      this.end();
    }
  }

  end(): void {
    clearTimeout(this.#timer);
    this.#user?.removeEventListener('abort', this.#onAbort);
    this.#abort.abort();
  }
}

function tooLong(place: HubPlace): CflowError {
  return new CflowError('LIMIT_EXCEEDED', `the answer has more than ${MAX_DOCUMENT_BYTES} bytes`, {
    file: placeName(place),
    remedy: 'check HF_ENDPOINT: this is no Hub',
  });
}
