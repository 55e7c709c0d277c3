/**
 * Measures decode and prefill, of our engine and of llama.cpp on the same weights, each run in a fresh process and in
 * turns, with the read bandwidth of the machine measured beside every round.
 */
import { CflowError, criticalPath, openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import type { OpenModelOptions } from '@cflow/runtime-native';
import { readBandwidth } from '../harness/bandwidth.js';
import { runChild } from '../harness/child.js';
import { requireFile } from '../harness/files.js';
import { type Spread, spread, spreadOf } from '../harness/statistics.js';
import type { DecodeJob, DecodeRun, Lengths } from './decode-job.js';
import { loadPeer } from './run-llama.js';

export interface DecodeBenchOptions extends Lengths {
  readonly file: string;
  /** The same weights for llama.cpp. */
  readonly gguf?: string | undefined;
  /** Of llama.cpp, of the bandwidth, and of our variants that name no other. */
  readonly threads: number;
  readonly runs: number;
  readonly variants: readonly Variant[];
  readonly onRun?: (subject: string, round: number) => void;
}

/** Options of our engine to compare, and what they are called. */
export interface Variant {
  readonly name: string;
  readonly options: OpenModelOptions;
}

/** Rates in tokens and 10^9 bytes a second; times in seconds. */
export interface DecodeRow {
  readonly subject: string;
  readonly backend: string;
  readonly threads: number;
  readonly decodeTokensPerSecond: Spread;
  readonly contextDecodeTokensPerSecond?: Spread | undefined;
  readonly prefillTokensPerSecond: Spread;
  /** Weight bytes consumed per token × tokens per second. */
  readonly gigabytesPerSecond: Spread;
  /** Of the read bandwidth of the same round with the same threads. */
  readonly shareOfBandwidth?: Spread | undefined;
  /** Counted by the engine while decoding; absent where it does not count. */
  readonly countedBytesPerToken?: number | undefined;
  readonly barriersPerToken?: number | undefined;
  readonly openSeconds: Spread;
  readonly firstTokenSeconds: Spread;
  readonly firstTokenFileBytes?: Spread | undefined;
  readonly peakBytes: Spread;
  readonly runs: readonly DecodeRun[];
}

export interface DecodeReport extends Lengths {
  readonly model: string;
  readonly rounds: number;
  /** Weight bytes that one token reads by the plan: every stream that it asks for, and the chosen experts. */
  readonly plannedBytesPerToken: number;
  /** Best pass of each round, by number of threads; absent without the addon. */
  readonly readBandwidth: Readonly<Record<number, Spread>>;
  readonly rows: readonly DecodeRow[];
}

/** Of a context, beyond what a command names: a prompt, and the tokens around it. */
export const ROOM = 8;

interface Subject {
  readonly name: string;
  readonly threads: number;
  readonly job: DecodeJob;
  readonly runs: DecodeRun[];
  /** Bandwidth of the round of each run. */
  readonly bandwidth: (number | undefined)[];
}

/**
 * `runs` rounds of every subject.
 * @throws CflowError NOT_READABLE, UNSUPPORTED (no peer installed), and whatever a run fails with
 */
export async function benchDecode(options: DecodeBenchOptions): Promise<DecodeReport> {
  const { name, bytesPerToken } = await describeModel(options);
  const subjects = await subjectsOf(options);
  const threadCounts = [...new Set(subjects.map(({ threads }) => threads))];
  const bandwidths = new Map<number, number[]>(threadCounts.map((threads) => [threads, []]));
  for (let round = 0; round < options.runs; round++) {
    for (const [threads, best] of bandwidths) {
      const passes = await readBandwidth(threads);
      if (passes.length) best[round] = Math.max(...passes);
    }
    for (const subject of subjects) {
      options.onRun?.(subject.name, round);
      subject.runs.push(await runChild<DecodeRun>('decode/decode-child', subject.job));
      subject.bandwidth.push(bandwidths.get(subject.threads)![round]);
    }
  }
  const measured = [...bandwidths].filter(([, best]) => best.length);
  return {
    model: name,
    tokens: options.tokens,
    prefill: options.prefill,
    warmup: options.warmup,
    context: options.context,
    rounds: options.runs,
    plannedBytesPerToken: bytesPerToken,
    readBandwidth: Object.fromEntries(measured.map(([threads, best]) => [threads, spread(best)])),
    rows: subjects.map((subject) => rowOf(subject, options, bytesPerToken)),
  };
}

/** @throws CflowError LIMIT_EXCEEDED if the context cannot take the lengths */
async function describeModel({ file, ...lengths }: DecodeBenchOptions) {
  const source = await openFileSource(file);
  try {
    const { config, dtype } = await openModel(source);
    const { contextLength, name } = config;
    for (const [field, value] of Object.entries(longest(lengths))) {
      if (value + ROOM <= contextLength) continue;
      throw new CflowError('LIMIT_EXCEEDED', `${value} tokens do not fit the context of ${contextLength}`, {
        file,
        field,
        value,
        limit: contextLength,
        remedy: 'use fewer',
      });
    }
    return { name, bytesPerToken: criticalPath(config, dtype).bytesPerToken };
  } finally {
    await source.close();
  }
}

/** Of the tokens that are passed or decoded in one sequence, which option gives their number. */
function longest({ prefill, warmup, tokens, context }: Lengths): Record<string, number> {
  return { prefill, warmup, tokens, context: context && context + tokens };
}

async function subjectsOf(options: DecodeBenchOptions): Promise<Subject[]> {
  const { file, gguf, threads, tokens, prefill, warmup, context } = options;
  const lengths = { tokens, prefill, warmup, context };
  const subject = (name: string, own: number, job: DecodeJob) => ({
    name,
    threads: own,
    job,
    runs: [],
    bandwidth: [],
  });
  const ours = options.variants.map(({ name, options: own }) => {
    const all = { threads, ...own };
    return subject(name, all.threads ?? threads, { kind: 'cflow', file, lengths, options: all });
  });
  if (gguf === undefined) return ours;
  await requireFile(gguf);
  // Here too, so that a missing peer is found before anything is measured.
  await loadPeer();
  return [...ours, subject('llama.cpp', threads, { kind: 'llama.cpp', file: gguf, lengths, threads })];
}

function rowOf(
  { name, threads, runs, bandwidth }: Subject,
  { tokens, prefill }: Lengths,
  planned: number,
): DecodeRow {
  const last = runs.at(-1)!;
  const speed = runs.map(({ decodeSeconds }) => tokens / decodeSeconds);
  const rates = runs.map(({ bytesPerToken }, i) => ((bytesPerToken ?? planned) * speed[i]!) / 1e9);
  const shares = rates.map((rate, i) => {
    const most = bandwidth[i];
    return most === undefined ? undefined : rate / most;
  });
  return {
    subject: name,
    backend: last.backend,
    threads,
    decodeTokensPerSecond: spread(speed),
    contextDecodeTokensPerSecond: spreadOf(
      runs.map(({ contextDecodeSeconds: s }) => (s === undefined ? s : tokens / s)),
    ),
    prefillTokensPerSecond: spread(runs.map(({ prefillSeconds }) => prefill / prefillSeconds)),
    gigabytesPerSecond: spread(rates),
    shareOfBandwidth: spreadOf(shares),
    countedBytesPerToken: last.bytesPerToken,
    barriersPerToken: last.native?.barriersPerToken,
    openSeconds: spread(runs.map(({ openSeconds }) => openSeconds)),
    firstTokenSeconds: spread(runs.map(({ firstTokenSeconds }) => firstTokenSeconds)),
    firstTokenFileBytes: spreadOf(runs.map(({ firstTokenFileBytes }) => firstTokenFileBytes)),
    peakBytes: spread(runs.map((run) => run.peakBytes)),
    runs,
  };
}
