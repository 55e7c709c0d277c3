/**
 * What an engine must do, and nothing else: the surface between the library (sessions, sampling, text) and the code
 * that executes plans. The reference interpreter is one engine; others take its place without a change above it.
 */
import { type ByteSource, CflowError, type ModelFile } from '@cflow/format';
import type { EngineOptions } from './engine-options.js';
import type { NativeEngineOptions, NativeEngineStats, NativeRouting } from './native/addon.js';
import type { TierChoice } from './tiers/choose.js';

/** Figures that an engine keeps; bytes. */
export interface EngineStats {
  /** Weights in memory. */
  readonly weightBytes: number;
  /** KV cache of the session; what it shares with a fork counts in both. */
  readonly cacheBytes: number;
  /** Of the native engine: how it runs, and its figures over all sessions. */
  readonly native?: NativeStats;
}

/** How the native engine runs, as it was chosen or asked for. */
export interface NativeStats
  extends Pick<NativeEngineOptions, 'isa' | 'threads' | 'shareShort' | 'weights' | 'arithmetic' | 'cache'>,
    Omit<NativeEngineStats, 'weightBytes'> {
  /** Where weights are and why, with what it should reach. */
  readonly choice: TierChoice;
  /** Where the number of threads came from, for people. */
  readonly threadsReason: string;
}

/** How tokens pass through an engine. */
export interface RunOptions {
  /** Checked between tokens; the native engine stops within one. */
  readonly signal?: AbortSignal | undefined;
  /** Wants the logits after every token, not just the last; `logits` is valid during the call only. */
  readonly onLogits?: ((index: number, logits: Float32Array) => void) | undefined;
}

/** One sequence: its position and key/value caches. Calls never overlap; the caller sees to that. */
export interface EngineSession {
  /** Passes tokens through the model; resolves to the logits after the last, [vocabSize], valid until the next run. */
  run(ids: readonly number[], options?: RunOptions): Promise<Float32Array>;
  /**
   * Goes back to the first `position` tokens that have passed, also after a run that failed; resolves to the position
   * reached. It is less than asked for where a cache has lost what the next token would attend to: the caller passes the
   * tokens between again.
   */
  truncate(position: number): Promise<number>;
  /** A second sequence with the tokens that have passed; memory is shared until one of the two goes on. */
  fork(): EngineSession;
  /** Figures so far. */
  stats(): EngineStats;
  /** Frees the caches of the sequence. */
  close(): Promise<void>;
}

/** What one session of a batch passes. */
export interface BatchRun {
  readonly session: EngineSession;
  /** One token that was generated, or a prompt, or a piece of two or more tokens of one. */
  readonly ids: readonly number[];
  /** Whether the logits after the last token are wanted; default true. */
  readonly logits?: boolean | undefined;
  /** Ends this run alone with INTERRUPTED. */
  readonly signal?: AbortSignal | undefined;
}

/** What became of one run of a batch: its error, or the logits after its last token, valid until its next run. */
export type BatchOutcome =
  | { readonly error: CflowError; readonly logits?: undefined }
  | { readonly error?: undefined; readonly logits: Float32Array | undefined };

/** What executes the plan of one model. */
export interface Engine {
  readonly name: string;
  /** What routings chose since the last call; empty unless the engine was opened to record them. */
  takeRoutings?(): NativeRouting[];
  /**
   * Passes tokens of several sessions of this engine through the model together, so that they share each read of the
   * weights; each session at most once. A run gives the same logits, to the bit, in any company, and one that fails leaves the
   * others alone: its session must be truncated before it goes on.
   * @throws CflowError USAGE for a session that runs already or is named twice
   */
  runBatch(runs: readonly BatchRun[]): Promise<BatchOutcome[]>;
  /** A new sequence, at position 0. */
  createSession(): EngineSession;
  /** Frees the weights. Sessions are closed before. */
  close(): Promise<void>;
}

/** Opens an engine on a file. Throws CflowError UNSUPPORTED where it cannot run here. */
export type EngineFactory = (source: ByteSource, file: ModelFile, options: EngineOptions) => Promise<Engine>;

/** @throws CflowError INTERRUPTED once the signal is aborted */
export function interrupt(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw interruption(signal);
}

/** The error of what an aborted signal ended. */
export function interruption(signal: AbortSignal): CflowError {
  return new CflowError('INTERRUPTED', 'interrupted', { cause: signal.reason });
}
