/**
 * What an engine must do, and nothing else: the surface between the library (sessions, sampling, text) and the code
 * that executes plans. The reference interpreter is one engine; others take its place without a change above it.
 */
import { type ByteSource, CflowError, type ModelFile, type TransferMode } from '@cflow/format';
import type {
  NativeDirectOptions,
  NativeEngineOptions,
  NativeEngineStats,
  NativeRouting,
} from './native/addon.js';
import type { TierChoice } from './tiers/choose.js';

/** Figures that an engine keeps; bytes. */
export interface EngineStats {
  /** Weights in memory. */
  readonly weightBytes: number;
  /** Key/value caches of the session. */
  readonly cacheBytes: number;
  /** Of the native engine: how it runs, and its figures over all sessions. */
  readonly native?: NativeStats;
}

/** How the native engine runs, as it was chosen or asked for. */
export interface NativeStats
  extends Pick<NativeEngineOptions, 'isa' | 'threads' | 'weights' | 'arithmetic' | 'cache'>,
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
  /** Figures so far. */
  stats(): EngineStats;
  /** Frees the caches of the sequence. */
  close(): Promise<void>;
}

/** What executes the plan of one model. */
export interface Engine {
  readonly name: string;
  /** What routings chose since the last call; empty unless the engine was opened to record them. */
  takeRoutings?(): NativeRouting[];
  /** A new sequence, at position 0. */
  createSession(): EngineSession;
  /** Frees the weights. Sessions are closed before. */
  close(): Promise<void>;
}

/** All but `transfers` concern the native engine only. */
export interface EngineOptions {
  /** Where the plan puts its transfers; absent = what suits, `none` for the reference engine. */
  readonly transfers?: TransferMode | undefined;
  /** Threads that compute, 1 to 1024; absent = what affinity and cgroup quota allow. */
  readonly threads?: number | undefined;
  /**
   * `mapped`: in the page cache; opening is immediate. `resident`: read into huge pages first, which decodes faster.
   * `direct`: as much in memory as the budget allows, the rest fetched from disk while the model runs. `auto`, the
   * default: resident if weights, caches and vectors fit the budget, else direct.
   */
  readonly weights?: 'auto' | NativeEngineOptions['weights'] | undefined;
  /** Bytes that the process may use; absent = most of what the system and its cgroup have left. */
  readonly memory?: number | undefined;
  /** Positions whose keys and values the budget keeps room for; absent = 2,048, or the context if that is shorter. */
  readonly context?: number | undefined;
  /** Overrides what is chosen for weights that are fetched. */
  readonly direct?: Partial<Omit<NativeDirectOptions, 'readAhead'>> | undefined;
  /** Keep which experts the routings choose. */
  readonly recordRoutings?: boolean | undefined;
  /** `q8`: int8 activations in front of quantized tiles, the default there; `f32`: exact. */
  readonly arithmetic?: NativeEngineOptions['arithmetic'] | undefined;
  /** Storage of keys and values; absent = f16 with q8 arithmetic, else f32. */
  readonly cache?: NativeEngineOptions['cache'] | undefined;
  /**
   * Memory for the keys and values of a session, bytes; the oldest go to disk beyond it. Absent = as much as they need,
   * or what `memory` leaves.
   */
  readonly cacheMemory?: number | undefined;
  /** Where these go: a file without a name, gone with the session. Absent = TMPDIR, else /var/tmp, else the system's. */
  readonly spillDirectory?: string | undefined;
  /** Tokens of one batch of a prefill. */
  readonly maxBatch?: number | undefined;
  /** Instruction set; absent = the environment's CFLOW_ISA, or the best. */
  readonly isa?: string | undefined;
  /** Collect time by kind of step. */
  readonly profile?: boolean | undefined;
  /** false = steps in program order, one parallel step between two barriers; to measure what the delays are worth. */
  readonly delayAware?: boolean | undefined;
}

/** Opens an engine on a file. Throws CflowError UNSUPPORTED where it cannot run here. */
export type EngineFactory = (source: ByteSource, file: ModelFile, options: EngineOptions) => Promise<Engine>;

/** @throws CflowError INTERRUPTED once the signal is aborted */
export function interrupt(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw new CflowError('INTERRUPTED', 'interrupted', { cause: signal.reason });
}
