/** What a child that keeps logits is asked. */
import type { EngineName } from '../capped/capped-job.js';

export interface LogitsJob {
  readonly engine: EngineName;
  /** .cflow, .vflow or .gguf, as the engine reads it. */
  readonly file: string;
  readonly threads: number;
  /** Of our engine: exact, or as it decides by itself. */
  readonly exact: boolean;
  /** Token ids; each sequence begins with nothing before it. */
  readonly sequences: readonly (readonly number[])[];
  /** File that gets the logits after every token, in order: rows of f32, as long as the vocabulary. */
  readonly output: string;
}

/** Of one child. */
export interface LogitsRun {
  readonly vocabSize: number;
}
