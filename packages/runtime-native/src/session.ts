import { CflowError, type ModelConfig } from '@cflow/format';
import {
  abortSignal,
  type Checks,
  callback,
  check,
  checkOptions,
  count,
  flag,
  idList,
  shown,
  whole,
} from '@cflow/format/node';
import { DEFAULT_MAX_TOKENS } from './defaults.js';
import { type EngineSession, type EngineStats, interrupt } from './engine.js';
import { constraintFor, GRAMMAR_CHECK, type GrammarSpec } from './grammar/constraint.js';
import { type Logprobs, logprobsOf, MAX_LOGPROBS } from './sampling/logprobs.js';
import {
  type LogitsProcessor,
  PROCESSOR_CHECKS,
  type ProcessorOptions,
  processorsOf,
} from './sampling/processors.js';
import { Sampler, type SamplerOptions } from './sampling/sampler.js';
import type { TextStream } from './text/detokenizer.js';
import { StopStrings } from './text/stop.js';
import type { TextTokenizer } from './text/tokenizer.js';

/**
 * What to generate, and how: processors change the logits, the sampler chooses, stop conditions end. What is absent is as
 * the model's generation_config.json has it, else `SAMPLER_DEFAULTS`.
 */
export interface GenerateOptions extends SamplerOptions, ProcessorOptions {
  /** Ids to pass through the model first; without them, the sequence goes on where it is. */
  readonly ids?: readonly number[] | undefined;
  /** Tokens to generate; must fit the context. Absent = 128, or as many as fit. */
  readonly maxTokens?: number | undefined;
  /** Go on after an end-of-text token. */
  readonly ignoreEos?: boolean | undefined;
  /** Texts before which the generated text ends, wherever its tokens are cut. */
  readonly stop?: readonly string[] | undefined;
  /** What the answer must be: an end-of-text token is generated where it is complete. */
  readonly grammar?: GrammarSpec | undefined;
  /** Report the log-probability of each token, and of so many alternatives. */
  readonly logprobs?: number | undefined;
  /** Ends the generation between tokens with CflowError INTERRUPTED. */
  readonly signal?: AbortSignal | undefined;
}

/** Who sees the logits, and who may stop it. */
export interface PrefillOptions {
  readonly signal?: AbortSignal | undefined;
  /** Sees the logits after each token, [vocabSize], valid during the call only. What it throws ends the session. */
  readonly onLogits?: ((index: number, logits: Float32Array) => void) | undefined;
}

/** Those of a sampler are checked by the sampler. */
const GENERATE_CHECKS: Checks<Omit<GenerateOptions, keyof SamplerOptions>> = {
  ...PROCESSOR_CHECKS,
  ids: idList,
  maxTokens: count,
  ignoreEos: flag,
  stop: {
    holds: (value) => Array.isArray(value) && value.every((each) => typeof each === 'string' && each !== ''),
    expected: 'an array of texts that are not empty',
  },
  grammar: GRAMMAR_CHECK,
  logprobs: whole(0, MAX_LOGPROBS),
  signal: abortSignal,
};
const PREFILL_CHECKS: Checks<PrefillOptions> = { signal: abortSignal, onLogits: callback };

/** Why a generation ended: an end-of-text token, a stop string, maxTokens, or the end of the context. */
export type FinishReason = 'eos' | 'stop' | 'length' | 'context';

/** One generated token. */
export interface GeneratedToken {
  readonly id: number;
  /** Text that this token completes; the pieces join to the whole. Empty without a tokenizer. */
  readonly text: string;
  /** As the model had it, before penalties and temperature; set if asked for. */
  readonly logprobs?: Logprobs;
  /** Set on the last token. */
  readonly finish?: FinishReason;
}

/** Figures of a session; times in milliseconds, rates in tokens per second. */
export interface SessionStats extends EngineStats {
  readonly promptTokens: number;
  readonly generatedTokens: number;
  readonly prefillMs: number;
  readonly decodeMs: number;
  /** Decode only; prompt processing is not included. */
  readonly tokensPerSecond: number;
  /** What the first prefill took: the wait for the first token. */
  readonly firstTokenMs: number;
  /** Median and 99th percentile of the time of one decoded token, over the latest 4,096. */
  readonly tokenMsP50: number;
  readonly tokenMsP99: number;
}

/** Token times that percentiles are made of: the latest. */
const KEPT_TOKEN_TIMES = 4096;

/** What a session is put together from. */
export interface SessionParts {
  readonly config: ModelConfig;
  readonly engine: EngineSession;
  readonly tokenizer?: TextTokenizer | undefined;
  /** What `generate` does where its options do not say. */
  readonly defaults?: SamplerOptions & ProcessorOptions;
  /** Makes the session of a fork; absent = one of the same parts. */
  readonly adopt?: (engine: EngineSession) => Session;
  /** Called once, when the session closes. */
  readonly onClose?: () => void;
}

/**
 * One sequence of tokens through a model. Its calls must not overlap: each rejects with USAGE while another runs.
 * A generated token belongs to the sequence. The last one of a generation has not passed through the model, which would
 * be in vain if nothing followed; whatever follows (`prefill`, `decode`, `generate`) passes it first.
 */
export class Session {
  readonly #parts: SessionParts;
  #position = 0;
  /** Ids that have passed. */
  #ids: number[] = [];
  /** Logits that processors change. */
  #processed = new Float32Array(0);
  #logits: Float32Array | undefined;
  /** A generated token that has not passed yet. */
  #pending: number | undefined;
  /** Text of what was generated since ids last came from outside. */
  #stream: TextStream | undefined;
  #busy = false;
  #closed = false;
  #failure: unknown;
  #counts = { promptTokens: 0, generatedTokens: 0, prefillMs: 0, decodeMs: 0, firstTokenMs: 0 };
  #decoded = 0;
  /** Of the decoded tokens, the latest; a ring. */
  readonly #tokenMs: number[] = [];

  constructor(parts: SessionParts) {
    this.#parts = parts;
  }

  /** Tokens that have passed through the model; the last one of a generation has not. */
  get position(): number {
    return this.#position;
  }

  /** A copy of the ids of the sequence, a generated one that has not passed among them. */
  get ids(): number[] {
    return this.#pending === undefined ? [...this.#ids] : [...this.#ids, this.#pending];
  }

  /** Ids that can be generated are below this: rows beyond the tokenizer's vocabulary mean nothing. */
  get vocabLimit(): number {
    const { config, tokenizer } = this.#parts;
    return Math.min(config.vocabSize, tokenizer?.vocabSize ?? config.vocabSize);
  }

  /** Ids that end a text: those of config.json, generation_config.json and tokenizer_config.json together. */
  get endIds(): ReadonlySet<number> {
    return new Set([...this.#parts.config.eosTokenIds, ...(this.#parts.tokenizer?.endIds ?? [])]);
  }

  /**
   * Passes tokens through the model. `onLogits` sees the logits after each of them.
   * @throws CflowError USAGE for no or unknown ids, LIMIT_EXCEEDED beyond the context, INTERRUPTED by the signal
   */
  async prefill(ids: readonly number[], options: PrefillOptions = {}): Promise<void> {
    checkOptions(options, PREFILL_CHECKS);
    await this.#exclusive(() => this.#prefill(ids, options));
  }

  /** Passes one token. Throws as `prefill`. */
  async decode(id: number): Promise<void> {
    await this.#exclusive(async () => {
      this.#checkIds([id]);
      if (this.#pending !== undefined) await this.#passPending();
      await this.#decode(id);
      this.#stream = this.#parts.tokenizer?.stream([id]);
    });
  }

  /** A copy of the logits after the last token that has passed, [vocabSize]. @throws CflowError USAGE before the first */
  logits(): Float32Array {
    this.#usable();
    if (!this.#logits)
      throw new CflowError('USAGE', 'there are no logits before the first token; call prefill');
    return this.#logits.slice();
  }

  /**
   * Generates tokens one by one; the last has `finish`. Leaving the loop early ends the generation; another goes on
   * after the last token, as if there had been one.
   * @throws CflowError as `prefill`, and NONFINITE_WEIGHT when logits are NaN
   */
  async *generate(given: GenerateOptions = {}): AsyncGenerator<GeneratedToken, void, void> {
    checkOptions(given, GENERATE_CHECKS);
    const options = { ...this.#parts.defaults, ...present(given) };
    const sampler = new Sampler(options);
    const processors = processorsOf(options, this.#parts.config.vocabSize, this.#gaps());
    if (options.grammar) processors.push(await this.#constraint(options.grammar, options.ignoreEos));
    this.#enter();
    try {
      const count = this.#budget(options);
      if (options.ids) await this.#prefill(options.ids, { signal: options.signal });
      else if (this.#pending !== undefined) {
        interrupt(options.signal);
        await this.#passPending();
      }
      if (!this.#logits)
        throw new CflowError('USAGE', 'nothing to continue: give ids, or call prefill first');
      yield* this.#tokens(sampler, processors, count, options);
    } finally {
      this.#busy = false;
    }
  }

  /**
   * Goes back to the first `position` tokens of the sequence, a generated one that has not passed among them, and
   * resolves to the position reached. It is less than asked for where a KV cache no longer has what the next token would
   * attend to (sliding windows, pages on disk): pass the tokens between again. A session whose last call failed or was
   * aborted is usable again. Figures go on counting.
   * @throws CflowError USAGE beyond the tokens of the sequence
   */
  async truncate(position: number): Promise<number> {
    check('position', position, whole(0, Number.MAX_SAFE_INTEGER));
    this.#claim();
    try {
      const { length } = this.ids;
      if (position > length) {
        throw new CflowError('USAGE', `position ${position} is beyond the ${length} tokens of the sequence`, {
          field: 'position',
          value: position,
          limit: length,
        });
      }
      if (position < length || this.#failure !== undefined) await this.#truncate(position);
      return this.ids.length;
    } finally {
      this.#busy = false;
    }
  }

  /**
   * A second session with the same tokens, which goes its own way. Memory is shared until one of the two goes on; figures of
   * the new one begin at zero. Close both.
   * @throws CflowError USAGE while a call runs, UNSUPPORTED if a part of the KV cache is on disk
   */
  fork(): Session {
    this.#enter();
    try {
      const { adopt, onClose: _, ...parts } = this.#parts;
      const engine = parts.engine.fork();
      const fork = adopt?.(engine) ?? new Session({ ...parts, engine });
      fork.#position = this.#position;
      fork.#ids = [...this.#ids];
      fork.#pending = this.#pending;
      fork.#logits = this.#logits?.slice();
      fork.#stream = this.#parts.tokenizer?.stream(this.ids);
      return fork;
    } finally {
      this.#busy = false;
    }
  }

  /** Figures so far, those of the engine among them. */
  stats(): SessionStats {
    const { decodeMs } = this.#counts;
    const tokensPerSecond = decodeMs > 0 ? (1000 * this.#decoded) / decodeMs : 0;
    const sorted = Float64Array.from(this.#tokenMs).sort();
    const tokenTimes = { tokenMsP50: percentile(sorted, 0.5), tokenMsP99: percentile(sorted, 0.99) };
    return { ...this.#parts.engine.stats(), ...this.#counts, tokensPerSecond, ...tokenTimes };
  }

  /** Begins to count anew: figures are of what follows. */
  resetStats(): void {
    this.#counts = { promptTokens: 0, generatedTokens: 0, prefillMs: 0, decodeMs: 0, firstTokenMs: 0 };
    this.#decoded = 0;
    this.#tokenMs.length = 0;
  }

  /** Frees the sequence; calling it again does nothing. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#parts.engine.close();
    this.#parts.onClose?.();
  }

  /** As `close`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async *#tokens(
    sampler: Sampler,
    processors: readonly LogitsProcessor[],
    { count, finish }: { count: number; finish: FinishReason },
    { ignoreEos = false, signal, stop = [], logprobs }: GenerateOptions,
  ): AsyncGenerator<GeneratedToken, void, void> {
    const { engine } = this.#parts;
    const stream = this.#stream;
    const strings = new StopStrings(stop);
    const endIds = ignoreEos ? new Set<number>() : this.endIds;
    const promptLength = this.#ids.length;
    for (let i = 0; i < count; i++) {
      this.#usable();
      interrupt(signal);
      const logits = this.#process(processors, promptLength);
      const id = sampler.sample(logits, this.vocabLimit, () => engine.stats());
      const chances = logprobs === undefined ? {} : { logprobs: logprobsOf(this.#logits!, id, logprobs) };
      this.#pending = id;
      this.#counts.generatedTokens++;
      const ends = endIds.has(id) ? 'eos' : i + 1 === count ? finish : undefined;
      const piece = (stream?.push(id) ?? '') + (ends ? (stream?.flush() ?? '') : '');
      const { text, found } = strings.push(piece);
      const last = found ? 'stop' : ends;
      const token = { id, text: last ? text + strings.flush() : text, ...chances };
      yield last ? { ...token, finish: last } : token;
      if (last) return;
      await this.#passPending();
    }
  }

  /** The logits of the next token: a changed copy, or those of the engine where nothing changes them. */
  #process(processors: readonly LogitsProcessor[], promptLength: number): Float32Array {
    if (processors.length === 0) return this.#logits!;
    if (this.#processed.length !== this.#logits!.length)
      this.#processed = new Float32Array(this.#logits!.length);
    this.#processed.set(this.#logits!);
    for (const process of processors) process(this.#processed, { ids: this.#ids, promptLength });
    return this.#processed;
  }

  async #constraint(grammar: GrammarSpec, ignoreEos = false): Promise<LogitsProcessor> {
    const { tokenizer } = this.#parts;
    const problem = ignoreEos ? 'ends with an end-of-text token, which ignoreEos goes beyond' : undefined;
    const missing = tokenizer ? undefined : 'needs a tokenizer, and the file has none that can be used';
    if (!tokenizer || problem) throw new CflowError('USAGE', `${problem ?? missing}`, { field: 'grammar' });
    return (await constraintFor(grammar, tokenizer, this.endIds)).processor();
  }

  /** Ids below `vocabLimit` that no token has. */
  #gaps(): readonly number[] {
    return this.#parts.tokenizer?.gaps(this.vocabLimit) ?? [];
  }

  /** How many tokens may be generated. The last one need not pass through the model, so it needs no position. */
  #budget({ ids = [], maxTokens }: GenerateOptions): { count: number; finish: FinishReason } {
    const { contextLength } = this.#parts.config;
    const given = this.#position + (this.#pending === undefined ? 0 : 1) + ids.length;
    const room = contextLength - given + 1;
    if (maxTokens === undefined) {
      const count = Math.min(DEFAULT_MAX_TOKENS, room);
      return { count, finish: count < DEFAULT_MAX_TOKENS ? 'context' : 'length' };
    }
    if (maxTokens > room) {
      throw new CflowError(
        'LIMIT_EXCEEDED',
        `${maxTokens} tokens do not fit the context of ${contextLength}`,
        {
          field: 'maxTokens',
          value: maxTokens,
          limit: contextLength,
          remedy: `at most ${Math.max(0, room)} fit after ${given} tokens`,
        },
      );
    }
    return { count: maxTokens, finish: 'length' };
  }

  /** Passes the token that was generated last and has not passed. */
  async #passPending(): Promise<void> {
    await this.#decode(this.#pending!);
    this.#pending = undefined;
  }

  async #prefill(ids: readonly number[], options: PrefillOptions): Promise<void> {
    check('ids', ids, idList);
    if (ids.length === 0) throw new CflowError('USAGE', 'no token ids: the prompt is empty');
    this.#checkIds(ids);
    interrupt(options.signal);
    // Without a wait where there is nothing to wait for: a call that is under way is one that `close` can cancel.
    if (this.#pending !== undefined) await this.#passPending();
    const start = performance.now();
    await this.#run(ids, options);
    const ms = performance.now() - start;
    if (this.#counts.promptTokens === 0) this.#counts.firstTokenMs = ms;
    this.#counts.promptTokens += ids.length;
    this.#counts.prefillMs += ms;
    this.#stream = this.#parts.tokenizer?.stream(this.#ids);
  }

  async #decode(id: number): Promise<void> {
    const start = performance.now();
    await this.#run([id]);
    const ms = performance.now() - start;
    this.#counts.decodeMs += ms;
    this.#tokenMs[this.#decoded++ % KEPT_TOKEN_TIMES] = ms;
  }

  async #run(ids: readonly number[], options?: PrefillOptions): Promise<void> {
    this.#usable();
    this.#checkRoom(ids.length);
    try {
      this.#logits = await this.#parts.engine.run(ids, options);
      this.#position += ids.length;
      for (const id of ids) this.#ids.push(id);
    } catch (error) {
      // Caches may hold half a token: nothing that follows would be right.
      this.#failure = error;
      throw error;
    }
  }

  async #truncate(position: number): Promise<void> {
    const passed = Math.min(position, this.#position);
    // What only takes back the pending token leaves the engine where it is, and its logits are those of the position.
    if (passed < this.#position || this.#failure !== undefined) {
      const reached = await this.#parts.engine.truncate(passed);
      this.#logits = undefined;
      this.#failure = undefined;
      if (reached < this.#position) this.#pending = undefined;
      this.#position = reached;
      this.#ids.length = reached;
    }
    if (position <= this.#position) this.#pending = undefined;
    this.#stream = this.#parts.tokenizer?.stream(this.ids);
  }

  #checkIds(ids: readonly number[]): void {
    const { vocabSize } = this.#parts.config;
    // Not `find`, whose answer for a hole in an array is that of one not found.
    const index = ids.findIndex((id) => !Number.isInteger(id) || id < 0 || id >= vocabSize);
    if (index >= 0) {
      const problem = `${shown(ids[index])} is not a whole number from 0 to ${vocabSize - 1}`;
      const details = { field: `ids[${index}]`, value: ids[index], limit: vocabSize };
      throw new CflowError('USAGE', problem, details);
    }
    this.#checkRoom(ids.length + (this.#pending === undefined ? 0 : 1));
  }

  #checkRoom(tokens: number): void {
    const { contextLength } = this.#parts.config;
    const needed = this.#position + tokens;
    if (needed > contextLength) {
      throw new CflowError('LIMIT_EXCEEDED', `${needed} tokens do not fit the context of ${contextLength}`, {
        field: 'ids',
        value: needed,
        limit: contextLength,
        remedy: 'shorten the prompt',
      });
    }
  }

  async #exclusive(work: () => Promise<void>): Promise<void> {
    this.#enter();
    try {
      await work();
    } finally {
      this.#busy = false;
    }
  }

  #enter(): void {
    this.#usable();
    this.#claim();
  }

  /** Takes the session for one call, one that failed as well. */
  #claim(): void {
    if (this.#closed) throw new CflowError('USAGE', 'the session is closed');
    if (this.#busy) {
      throw new CflowError('USAGE', 'the session is busy: another call or generation has not ended', {
        remedy: 'await it, or create a second session',
      });
    }
    this.#busy = true;
  }

  #usable(): void {
    if (this.#closed) throw new CflowError('USAGE', 'the session is closed');
    if (this.#failure !== undefined) {
      throw new CflowError('USAGE', 'the session failed before', {
        remedy: 'truncate it to a position before, or create a new one',
        cause: this.#failure,
      });
    }
  }
}

/** Options without those that are undefined, which would hide defaults. */
function present<T extends object>(options: T): T {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as T;
}

/** The smallest value that at least `share` of them do not exceed; 0 if there are none. */
function percentile(sorted: Float64Array, share: number): number {
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? 0;
}
