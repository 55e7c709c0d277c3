/** Writes the logits of an engine after every token of some sequences to a file. */
import { closeSync, openSync, writeFileSync } from 'node:fs';
import { Model } from '@cflow/runtime-native';
import { logitsAfter, withLlama } from '../../engines/llama.js';
import type { EngineName } from '../capped/run.js';

export interface LogitsJob {
  readonly engine: EngineName;
  /** .cflow, .vflow or .gguf, depending on the engine. */
  readonly file: string;
  readonly threads: number;
  /** For our engine: f32 activations, or its default. */
  readonly exact: boolean;
  /** Token ids; each sequence starts with an empty context. */
  readonly sequences: readonly (readonly number[])[];
  /** Output file: a row of f32[vocabulary] per token, in order. */
  readonly output: string;
}

/** One run. */
export interface LogitsRun {
  readonly vocabSize: number;
}

/** Writes a row; all rows have the same length. */
type Keep = (logits: Float32Array) => void;

/** @throws CflowError UNSUPPORTED without node-llama-cpp, and errors of the engines */
export async function runLogits(job: LogitsJob): Promise<LogitsRun> {
  const output = openSync(job.output, 'w');
  let vocabSize = 0;
  const keep: Keep = (logits) => {
    vocabSize = logits.length;
    writeFileSync(output, logits);
  };
  try {
    await (job.engine === 'cflow' ? ours(job, keep) : theirs(job, keep));
    return { vocabSize };
  } finally {
    closeSync(output);
  }
}

async function ours({ file, threads, exact, sequences }: LogitsJob, keep: Keep): Promise<void> {
  const model = await Model.open(file, { engine: 'native', threads, ...(exact && { arithmetic: 'f32' }) });
  try {
    for (const ids of sequences) {
      const session = model.createSession();
      await session.prefill(ids, { onLogits: (_, logits) => keep(logits) });
      await session.close();
    }
  } finally {
    await model.close();
  }
}

function theirs({ file, threads, sequences }: LogitsJob, keep: Keep): Promise<void> {
  const contextSize = Math.max(...sequences.map(({ length }) => length)) + 64;
  return withLlama({ file, threads, contextSize }, async ({ sequence }) => {
    for (const ids of sequences) {
      await sequence.clearHistory();
      await logitsAfter(sequence, ids, keep);
    }
  });
}
