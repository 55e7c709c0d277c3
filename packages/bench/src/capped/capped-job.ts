/** What a child of `cflow-bench capped` is asked, and what it answers. */

export type EngineName = 'cflow' | 'llama.cpp';

export interface CappedLengths {
  /** Tokens decoded before any is timed, so that what is kept in memory is in a steady state. */
  readonly warmup: number;
  /** Tokens decoded and timed, one by one. */
  readonly tokens: number;
}

export interface CappedJob {
  readonly engine: EngineName;
  /** .cflow, .vflow or .gguf, as the engine reads it. */
  readonly file: string;
  readonly threads: number;
  /** Bytes that our engine keeps to; llama.cpp has no such option. */
  readonly memory: number;
  readonly vocabSize: number;
  readonly lengths: CappedLengths;
  /** Folder of a memory cgroup to run in. */
  readonly group?: string | undefined;
}

/** Of one child. */
export interface CappedRun {
  readonly openSeconds: number;
  /** Of each timed token, choosing the next one included. */
  readonly tokenSeconds: readonly number[];
  /** Bytes that the process read from the disk for a timed token; undefined where the system does not say. */
  readonly bytesPerToken: number | undefined;
  /** The most likely token after each timed one. */
  readonly chosen: readonly number[];
  /** What computes, in its own words. */
  readonly backend: string;
}
