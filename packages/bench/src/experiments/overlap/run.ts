/** One measurement of a model whose experts are on disk. */

import { createHash } from 'node:crypto';
import { CflowError } from '@cflow/format';
import { Model, type NativeStats, type OpenModelOptions, type Session } from '@cflow/runtime-native';
import type { NativeTierStats } from '@cflow/runtime-native/internal/native/addon.js';
import type { TierChoice } from '@cflow/runtime-native/internal/tiers/choose.js';
import { peakBytes } from '../../runner/memory.js';
import { argmax } from '../../runner/statistics.js';
import { randomIds } from '../../runner/tokens.js';

export interface OverlapLengths {
  /** Prompt tokens before the first token. */
  readonly prompt: number;
  /** Tokens decoded before anything is timed, so that the expert cache reaches a steady state. */
  readonly warmup: number;
  /** Tokens decoded and timed, one by one. */
  readonly tokens: number;
}

export interface OverlapJob {
  readonly file: string;
  readonly options: OpenModelOptions;
  readonly lengths: OverlapLengths;
}

/** One run; seconds and bytes. Figures cover the timed tokens only, unless stated. */
export interface OverlapRun {
  readonly openSeconds: number;
  /** From the opened model to the logits of the prompt, with an empty expert cache. */
  readonly firstTokenSeconds: number;
  readonly tokenSeconds: readonly number[];
  /** Weight bytes that steps read from memory. */
  readonly weightBytes: number;
  readonly tiers: Pick<
    NativeTierStats,
    'hits' | 'predicted' | 'misses' | 'ahead' | 'stallSeconds' | 'bytesRead' | 'busySeconds'
  >;
  /** How weights were read; `reason` is empty if O_DIRECT and io_uring work. */
  readonly how: Pick<NativeTierStats, 'slots' | 'direct' | 'uring' | 'reason'>;
  readonly choice: TierChoice;
  /** Whole run. */
  readonly peakBytes: number;
  /** Most likely token after each timed token. */
  readonly chosen: readonly number[];
  /** SHA-256 of the logits after all timed tokens. */
  readonly digest: string;
}

const seconds = (from: number) => (performance.now() - from) / 1000;

/**
 * Opens the model, times a first prompt, warms up the cache, and times tokens. Tokens are pseudo-random: greedy decoding
 * of random weights repeats a cycle whose experts are soon all in memory.
 */
export async function runOverlap({ file, options, lengths }: OverlapJob): Promise<OverlapRun> {
  const start = performance.now();
  const model = await Model.open(file, options);
  try {
    const openSeconds = seconds(start);
    const ids = randomIds(lengths.prompt + lengths.warmup + lengths.tokens, model.config.vocabSize);
    const firstTokenSeconds = await firstToken(model, ids.slice(0, lengths.prompt));
    const session = model.createSession();
    for (const id of ids.slice(lengths.prompt, -lengths.tokens)) await session.decode(id);
    const decoded = await decode(session, ids.slice(-lengths.tokens));
    await session.close();
    return { openSeconds, firstTokenSeconds, ...decoded, peakBytes: peakBytes() };
  } finally {
    await model.close();
  }
}

async function firstToken(model: Model, ids: readonly number[]): Promise<number> {
  const session = model.createSession();
  const from = performance.now();
  await session.prefill(ids);
  const spent = seconds(from);
  await session.close();
  return spent;
}

async function decode(session: Session, ids: readonly number[]) {
  const before = nativeStats(session);
  const tokenSeconds: number[] = [];
  const chosen: number[] = [];
  const hash = createHash('sha256');
  for (const id of ids) {
    const from = performance.now();
    await session.decode(id);
    tokenSeconds.push(seconds(from));
    const logits = session.logits();
    chosen.push(argmax(logits));
    hash.update(new Uint8Array(logits.buffer));
  }
  const after = nativeStats(session);
  const { slots, direct, uring, reason } = after.tiers;
  return {
    tokenSeconds,
    chosen,
    digest: hash.digest('hex'),
    weightBytes: after.bytesRead - before.bytesRead,
    tiers: tiersSince(before.tiers, after.tiers),
    how: { slots, direct, uring, reason },
    choice: after.choice,
  };
}

const COUNTED = ['hits', 'predicted', 'misses', 'ahead', 'stallSeconds', 'bytesRead', 'busySeconds'] as const;

function tiersSince(before: OverlapRun['tiers'], after: OverlapRun['tiers']): OverlapRun['tiers'] {
  const since = COUNTED.map((name) => [name, after[name] - before[name]] as const);
  return Object.fromEntries(since) as unknown as OverlapRun['tiers'];
}

function nativeStats(session: Session): NativeStats {
  const { native } = session.stats();
  if (native) return native;
  throw new CflowError('UNSUPPORTED', 'only the native engine fetches weights from disk');
}
