/**
 * Quality of both engines: perplexity on the same tokens, and KL divergence from f32 activations and between them. The
 * weights are the same, so any difference is rounding or a defect.
 */
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { CflowError } from '@cflow/format';
import { negativeLogLikelihood } from '@cflow/runtime-native/internal/perplexity.js';
import { runChild } from '../../runner/child.js';
import { argmax, klDivergence } from '../../runner/statistics.js';
import type { LogitsJob, LogitsRun } from './logits.js';

/** One engine. */
export interface EngineQuality {
  /** exp of the mean negative log-likelihood of the next tokens; undefined without one. */
  readonly perplexity: number | undefined;
  /** Mean KL(our f32 arithmetic ‖ engine) over positions, nats. */
  readonly kl: number;
}

export interface PeerQuality {
  readonly positions: number;
  readonly ours: EngineQuality;
  readonly theirs: EngineQuality;
  /** Mean KL(ours ‖ theirs) over positions, nats. */
  readonly between: number;
  /** Share of positions where both have the same most likely token. */
  readonly sameToken: number;
}

/** Logits after one token. */
export interface Position {
  /** With f32 activations. */
  readonly exact: Float32Array;
  readonly ours: Float32Array;
  readonly theirs: Float32Array;
  /** Next token; undefined at the end of a sequence. */
  readonly next: number | undefined;
}

/** Needs at least one position. */
export async function qualityOf(
  positions: AsyncIterable<Position> | Iterable<Position>,
): Promise<PeerQuality> {
  const sum = { ours: zero(), theirs: zero(), between: 0, same: 0, positions: 0 };
  for await (const { exact, ours, theirs, next } of positions) {
    add(sum.ours, exact, ours, next);
    add(sum.theirs, exact, theirs, next);
    sum.between += klDivergence(ours, theirs);
    sum.same += Number(argmax(ours) === argmax(theirs));
    sum.positions++;
  }
  const { positions: n } = sum;
  return {
    positions: n,
    ours: meanOf(sum.ours, n),
    theirs: meanOf(sum.theirs, n),
    between: sum.between / n,
    sameToken: sum.same / n,
  };
}

const zero = () => ({ nats: 0, predicted: 0, kl: 0 });
type Sum = ReturnType<typeof zero>;

function add(sum: Sum, exact: Float32Array, logits: Float32Array, next: number | undefined): void {
  sum.kl += klDivergence(exact, logits);
  if (next === undefined) return;
  sum.nats += negativeLogLikelihood(logits, next);
  sum.predicted++;
}

function meanOf({ nats, predicted, kl }: Sum, positions: number): EngineQuality {
  return { perplexity: predicted ? Math.exp(nats / predicted) : undefined, kl: kl / positions };
}

export interface QualityRequest {
  readonly file: string;
  readonly gguf: string;
  readonly threads: number;
  readonly sequences: readonly (readonly number[])[];
  /** Directory for files of logits. */
  readonly directory: string;
}

/** Runs each engine in its own process. @throws CflowError as the engines do */
export async function measurePeerQuality(request: QualityRequest): Promise<PeerQuality> {
  const { file, gguf, threads, sequences, directory } = request;
  const jobs = {
    exact: { engine: 'cflow', file, exact: true },
    ours: { engine: 'cflow', file, exact: false },
    theirs: { engine: 'llama.cpp', file: gguf, exact: false },
  } as const;
  const outputs: string[] = [];
  const vocabSizes = new Set<number>();
  for (const [name, job] of Object.entries(jobs)) {
    const output = join(directory, `${name}.logits`);
    const asked: LogitsJob = { ...job, threads, sequences, output };
    vocabSizes.add((await runChild<LogitsRun>('logits', asked)).vocabSize);
    outputs.push(output);
  }
  const [vocabSize = 0, another] = vocabSizes;
  if (another !== undefined)
    throw new CflowError('VERIFY_FAILED', `engines give ${vocabSize} and ${another} logits`, { file: gguf });
  const following = sequences.flatMap((ids) => ids.map((_, i) => ids[i + 1]));
  return qualityOf(positionsOf(outputs, vocabSize, following));
}

/** Row by row: files may be larger than memory. */
async function* positionsOf(
  files: readonly string[],
  length: number,
  following: readonly (number | undefined)[],
): AsyncGenerator<Position> {
  const handles = await Promise.all(files.map((file) => open(file)));
  try {
    for (const next of following) {
      const rows = await Promise.all(
        handles.map(async (handle) => {
          const row = new Float32Array(length);
          const { bytesRead } = await handle.read(row);
          if (bytesRead < row.byteLength) throw new CflowError('INTERNAL', 'a file of logits is truncated');
          return row;
        }),
      );
      const [exact, ours, theirs] = rows as [Float32Array, Float32Array, Float32Array];
      yield { exact, ours, theirs, next };
    }
  } finally {
    for (const handle of handles) await handle.close();
  }
}
