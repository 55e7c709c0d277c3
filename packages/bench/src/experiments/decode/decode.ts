/** `cflow-bench decode` and `prefill`: tokens/s of our engine, and of llama.cpp on the same weights. */

import { cpus } from 'node:os';
import type { EngineName, ProfileEntry } from '@cflow/runtime-native';
import { ENGINES } from '@cflow/runtime-native/internal/model.js';
import { fileText } from '#cli-kit/bytes.js';
import { plural } from '#cli-kit/text.js';
import { leftFirst } from '../../report/text.js';
import { experiment } from '../../runner/experiment.js';
import { count, SHARED, threadsOf } from '../../runner/options.js';
import { type Measured, type Metric, metric } from '../../runner/result.js';
import type { Spread } from '../../runner/statistics.js';
import { benchDecode, type DecodeReport, type DecodeRow, decodeMeasured } from './bench.js';
import { parseVariants } from './variants.js';

const { gguf, threads, tokens, prefill: promptTokens, warmup, context } = SHARED;
const runs = { ...SHARED.runs, default: 5 };

export const decode = experiment({
  name: 'decode',
  positional: '<model>',
  describe: 'tokens/s of decode and prompt processing, optionally compared with llama.cpp',
  options: (y) =>
    y
      .positional('model', SHARED.model)
      .options({ gguf, threads, tokens, prefill: promptTokens, warmup, context, runs })
      .option('engine', { choices: Object.keys(ENGINES) as EngineName[], describe: '[default: native]' })
      .option('variants', {
        type: 'string',
        array: true,
        default: [] as string[],
        describe: 'engine options to compare, e.g. delayAware=on,off',
      })
      .option('profile', { type: 'boolean', default: false, describe: 'time of each kind of step' }),
  timed: true,
  measure: async ({ model, gguf, engine, profile, ...args }, run) =>
    benchDecode(
      {
        file: model,
        gguf,
        threads: await threadsOf(args.threads),
        tokens: count('tokens', args.tokens, 100_000),
        prefill: count('prefill', args.prefill, 100_000),
        warmup: count('warmup', args.warmup, 100_000),
        context: count('context', args.context, 100_000, 0),
        runs: count('runs', args.runs, 1_000),
        variants: parseVariants(args.variants, {
          ...(engine ? { engine } : {}),
          ...(profile ? { profile } : {}),
        }),
      },
      run,
    ),
  results: decodeMeasured,
  json: withHost,
  text: (report) => describe(withHost(report)),
});

export const prefill = experiment({
  name: 'prefill',
  positional: '<model>',
  describe: 'tokens/s of prompt processing by prompt length',
  options: (y) =>
    y
      .positional('model', SHARED.model)
      .options({ gguf, threads, warmup, runs })
      .option('lengths', {
        type: 'number',
        array: true,
        default: [32, 128, 512],
        describe: 'prompt lengths, tokens',
      }),
  timed: true,
  async measure({ model, gguf, ...args }, run) {
    const common = {
      file: model,
      gguf,
      threads: await threadsOf(args.threads),
      warmup: count('warmup', args.warmup, 100_000),
      runs: count('runs', args.runs, 1_000),
      tokens: 1,
      context: 0,
      variants: [{ name: 'cflow', options: {} }],
    };
    const reports: DecodeReport[] = [];
    for (const length of args.lengths.map((length) => count('lengths', length, 100_000)))
      reports.push(await benchDecode({ ...common, prefill: length }, run.within(`prompt of ${length}`)));
    return reports;
  },
  results: prefillMeasured,
});

function withHost(report: DecodeReport) {
  return { ...report, cpu: cpus()[0]?.model ?? 'unknown', node: process.version };
}

const range = ({ median, min, max }: Spread, digits: number, factor = 1) =>
  [median, min, max].map((value) => (value * factor).toFixed(digits));
const cell = (spread: Spread | undefined, digits: number, factor = 1) => {
  if (!spread) return '-';
  const [middle, low, high] = range(spread, digits, factor);
  return `${middle} (${low}-${high})`;
};

const HEAD = [
  '',
  'decode tok/s',
  'at depth',
  'prefill tok/s',
  'GB/s',
  '% of read',
  'barriers',
  'open ms',
  'first token ms',
  'peak MiB',
];

function describe(report: ReturnType<typeof withHost>): string {
  const { model, tokens, prefill, rounds, plannedBytesPerToken: planned, rows } = report;
  const bandwidth = Object.entries(report.readBandwidth).map(
    ([threads, speed]) => `read bandwidth, ${plural(Number(threads), 'thread')}: ${cell(speed, 1)} GB/s`,
  );
  const cells = rows.map((row) => [
    row.engine,
    cell(row.decodeTokensPerSecond, 1),
    cell(row.contextDecodeTokensPerSecond, 1),
    cell(row.prefillTokensPerSecond, 1),
    cell(row.gigabytesPerSecond, 1),
    cell(row.shareOfBandwidth, 0, 100),
    row.barriersPerToken === undefined ? '-' : String(row.barriersPerToken),
    cell(row.openSeconds, 0, 1000),
    cell(row.firstTokenSeconds, 0, 1000),
    cell(row.peakBytes, 0, 2 ** -20),
  ]);
  return [
    `${model}: ${tokens} tokens decoded, a prompt of ${prefill}; ${rounds} rounds, median (min-max); ${report.cpu}, Node ${report.node}`,
    `${fileText(planned)} of weights per token planned`,
    ...bandwidth,
    ...leftFirst([HEAD, ...cells]),
    ...rows.flatMap(describeRow),
  ].join('\n');
}

function describeRow({
  engine,
  backend,
  threads,
  countedBytesPerToken,
  firstTokenFileBytes,
  runs,
}: DecodeRow): string[] {
  const counted =
    countedBytesPerToken === undefined ? '' : `, ${fileText(countedBytesPerToken)} per token counted`;
  const touched = firstTokenFileBytes
    ? `, ${fileText(firstTokenFileBytes.median)} of mapped weights touched by the first token`
    : '';
  return [
    `${engine}: ${backend}, ${plural(threads, 'thread')}${counted}${touched}`,
    ...profileLines('decode', runs.at(-1)?.decodeProfile, threads),
    ...profileLines('prefill', runs.at(-1)?.prefillProfile, threads),
  ];
}

/** Time of each kind of step, summed over threads, and the rate at which all threads together read its weights. */
function profileLines(
  title: string,
  profile: readonly ProfileEntry[] | undefined,
  threads: number,
): string[] {
  const total = profile?.reduce((sum, { seconds }) => sum + seconds, 0);
  if (!profile || !total) return [];
  const rows = [...profile]
    .sort((a, b) => b.seconds - a.seconds)
    .map(({ name, calls, seconds, bytes }) => [
      `  ${name}`,
      String(calls),
      seconds.toFixed(3),
      ((100 * seconds) / total).toFixed(1),
      bytes && seconds ? ((bytes * threads) / seconds / 1e9).toFixed(1) : '-',
    ]);
  return leftFirst([[`  ${title}`, 'calls', 'thread s', '%', 'GB/s'], ...rows]);
}

export function prefillMeasured(reports: readonly DecodeReport[]): Measured {
  const metrics = reports.flatMap(({ prefill, rows }) =>
    rows.map(({ engine, runs }): Metric => {
      const speeds = runs.map(({ prefillSeconds }) => prefill / prefillSeconds);
      return metric(`${engine}: prompt of ${prefill}`, 'tok/s', 'higher', speeds);
    }),
  );
  return { metrics };
}
