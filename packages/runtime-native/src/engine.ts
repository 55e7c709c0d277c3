/**
 * What an engine must do, and nothing else: the surface between the library (sessions, sampling, text) and the code
 * that executes plans. The reference interpreter is one engine; others take its place without a change above it.
 */
import type { ByteSource, ModelFile, TransferMode } from '@cflow/format';

/** Figures that an engine keeps; bytes. */
export interface EngineStats {
  /** Weights in memory. */
  readonly weightBytes: number;
  /** Key/value caches of the session. */
  readonly cacheBytes: number;
}

export interface RunOptions {
  /** Checked between tokens. */
  readonly signal?: AbortSignal | undefined;
  /** Wants the logits after every token, not just the last; `logits` is valid during the call only. */
  readonly onLogits?: ((index: number, logits: Float32Array) => void) | undefined;
}

/** One sequence: its position and key/value caches. Calls never overlap; the caller sees to that. */
export interface EngineSession {
  /** Passes tokens through the model; resolves to the logits after the last, [vocabSize], valid until the next run. */
  run(ids: readonly number[], options?: RunOptions): Promise<Float32Array>;
  stats(): EngineStats;
  close(): Promise<void>;
}

export interface Engine {
  readonly name: string;
  createSession(): EngineSession;
  close(): Promise<void>;
}

export interface EngineOptions {
  /** Where the plan puts its transfers. */
  readonly transfers: TransferMode;
}

export type EngineFactory = (source: ByteSource, file: ModelFile, options: EngineOptions) => Promise<Engine>;
