/**
 * Measures decode and prefill of our engine and llama.cpp on the same weights, interleaved, each run in a fresh process,
 * with the memory bandwidth measured in every round.
 */
import { CflowError, criticalPath } from '@cflow/format';
import type { OpenModelOptions } from '@cflow/runtime-native';
import { loadPeer } from '../../engines/llama.js';
import { runChild } from '../../runner/child.js';
import { Run } from '../../runner/experiment.js';
import { requireFile, withModelFile } from '../../runner/files.js';
import { readBandwidth } from '../../runner/machine.js';
import { type Measured, type Metric, metric } from '../../runner/result.js';
import { type Spread, spread, spreadOf } from '../../runner/statistics.js';
import type { DecodeJob, DecodeRun, Lengths } from './run.js';

export interface DecodeBenchOptions extends Lengths {
  readonly file: string;
  /** The same weights for llama.cpp. */
  readonly gguf?: string | undefined;
  /** Compute threads of llama.cpp, of the bandwidth, and the default of variants. */
  readonly threads: number;
  readonly runs: number;
  readonly variants: readonly Variant[];
}

/** A named set of options of our engine. */
export interface Variant {
  readonly name: string;
  readonly options: OpenModelOptions;
}

/** Rates in tokens/s and GB/s; times in seconds. */
export interface DecodeRow {
  readonly engine: string;
  readonly backend: string;
  readonly threads: number;
  readonly decodeTokensPerSecond: Spread;
  readonly contextDecodeTokensPerSecond?: Spread | undefined;
  readonly prefillTokensPerSecond: Spread;
  /** Weight bytes consumed per token × tokens per second. */
  readonly gigabytesPerSecond: Spread;
  /** Share of the memory bandwidth of the same round and number of threads. */
  readonly shareOfBandwidth?: Spread | undefined;
  /** Counted by the engine during decode; absent if it does not count. */
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
  /** Weight bytes per token according to the plan: every stream, and the selected experts. */
  readonly plannedBytesPerToken: number;
  /** Best pass per round, by number of threads; absent without the addon. */
  readonly readBandwidth: Readonly<Record<number, Spread>>;
  readonly rows: readonly DecodeRow[];
}

/** Additional positions of the context for a short prompt and the tokens around it. */
export const ROOM = 8;

interface Entry {
  readonly name: string;
  readonly threads: number;
  readonly job: DecodeJob;
}

/**
 * Measures `runs` rounds of every engine and variant.
 * @throws CflowError NOT_READABLE, UNSUPPORTED without node-llama-cpp, and errors of the runs
 */
export async function benchDecode(options: DecodeBenchOptions, run = new Run()): Promise<DecodeReport> {
  const { tokens, prefill, warmup, context, runs: rounds } = options;
  const { name, bytesPerToken } = await describeModel(options);
  const entries = await entriesOf(options);
  const bandwidths = new Map<number, number[]>(entries.map(({ threads }) => [threads, []]));
  const results = await run.turns({
    variants: entries,
    rounds,
    name: (entry) => entry.name,
    async before() {
      for (const [threads, best] of bandwidths) {
        const passes = await readBandwidth(threads);
        if (passes.length) best.push(Math.max(...passes));
      }
    },
    measure: ({ job }) => runChild<DecodeRun>('decode', job),
  });
  const measured = [...bandwidths].filter(([, best]) => best.length);
  return {
    model: name,
    tokens,
    prefill,
    warmup,
    context,
    rounds,
    plannedBytesPerToken: bytesPerToken,
    readBandwidth: Object.fromEntries(measured.map(([threads, best]) => [threads, spread(best)])),
    rows: entries.map((entry, i) =>
      rowOf(entry, results[i]!, bandwidths.get(entry.threads)!, options, bytesPerToken),
    ),
  };
}

/** @throws CflowError LIMIT_EXCEEDED if the lengths do not fit the context */
function describeModel({ file, ...lengths }: DecodeBenchOptions) {
  return withModelFile(file, ({ config, dtype }) => {
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
  });
}

/** Tokens of each sequence, by option name. */
function longest({ prefill, warmup, tokens, context }: Lengths): Record<string, number> {
  return { prefill, warmup, tokens, context: context && context + tokens };
}

async function entriesOf(options: DecodeBenchOptions): Promise<Entry[]> {
  const { file, gguf, threads, tokens, prefill, warmup, context } = options;
  const lengths = { tokens, prefill, warmup, context };
  const ours = options.variants.map(({ name, options: own }) => {
    const all = { threads, ...own };
    const job: DecodeJob = { kind: 'cflow', file, lengths, options: all };
    return { name, threads: all.threads ?? threads, job };
  });
  if (gguf === undefined) return ours;
  await requireFile(gguf);
  // Report missing node-llama-cpp before measuring.
  await loadPeer();
  const job: DecodeJob = { kind: 'llama.cpp', file: gguf, lengths, threads };
  return [...ours, { name: 'llama.cpp', threads, job }];
}

/** @param bandwidth of each round; empty without the addon */
function rowOf(
  { name, threads }: Entry,
  runs: readonly DecodeRun[],
  bandwidth: readonly number[],
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
    engine: name,
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

interface Figure {
  readonly name: string;
  readonly unit: string;
  readonly better: Metric['better'];
  /** Value of one run; undefined if the engine has no such figure. */
  readonly of: (run: DecodeRun, report: DecodeReport) => number | undefined;
}

const perSecond = (tokens: number, seconds: number | undefined) => seconds && tokens / seconds;

/** In the order of the tables. */
export const FIGURES = [
  {
    name: 'decode',
    unit: 'tok/s',
    better: 'higher',
    of: (run, { tokens }) => perSecond(tokens, run.decodeSeconds),
  },
  {
    name: 'decode in context',
    unit: 'tok/s',
    better: 'higher',
    of: (run, { tokens }) => perSecond(tokens, run.contextDecodeSeconds),
  },
  {
    name: 'prefill',
    unit: 'tok/s',
    better: 'higher',
    of: (run, { prefill }) => perSecond(prefill, run.prefillSeconds),
  },
  { name: 'open', unit: 's', better: 'lower', of: (run) => run.openSeconds },
  { name: 'first token', unit: 's', better: 'lower', of: (run) => run.firstTokenSeconds },
  { name: 'peak memory', unit: 'MB', better: 'lower', of: (run) => run.peakBytes / 1e6 },
  {
    name: 'weights a token',
    unit: 'MB',
    better: 'lower',
    of: ({ bytesPerToken }) => bytesPerToken && bytesPerToken / 1e6,
  },
  { name: 'barriers a token', unit: '', better: 'lower', of: (run) => run.native?.barriersPerToken },
] as const satisfies readonly Figure[];

/** `engine: figure` of every engine. @param prefix e.g. `olmoe ` in results with several models */
export function decodeMetrics(report: DecodeReport, prefix = ''): Metric[] {
  return report.rows.flatMap((row) => rowMetrics(row, report, prefix));
}

function rowMetrics({ engine, runs }: DecodeRow, report: DecodeReport, prefix: string): Metric[] {
  return FIGURES.flatMap(({ name, unit, better, of }) => {
    const values = runs.map((run) => of(run, report)).filter((value) => value !== undefined);
    return values.length ? [metric(`${prefix}${engine}: ${name}`, unit, better, values)] : [];
  });
}

export function decodeMeasured(report: DecodeReport): Measured {
  const rows = report.rows.map(({ engine, backend, threads }) => [engine, backend, threads]);
  return {
    metrics: decodeMetrics(report),
    tables: [{ title: `${report.model}: engines`, columns: ['engine', 'backend', 'threads'], rows }],
  };
}
