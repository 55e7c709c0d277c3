/** Logits of either engine after every token of some sequences. */
import { closeSync, openSync, writeFileSync } from 'node:fs';
import { Model } from '@cflow/runtime-native';
import { logitsAfter, withLlama } from '../decode/run-llama.js';
import type { LogitsJob, LogitsRun } from './logits-job.js';

/** Writes a row; rows of a file are equally long. */
type Keep = (logits: Float32Array) => void;

/** @throws CflowError as the engines do, UNSUPPORTED without the peer */
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
