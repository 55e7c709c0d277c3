/** `cflow-bench decode`. */
import { cpus } from 'node:os';
import { ENGINES, type EngineName, type ProfileEntry } from '@cflow/runtime-native';
import { warnIfBusy } from '../harness/busy.js';
import { type Builder, count, mega, print, SHARED, table, threadsOf } from '../harness/cli-common.js';
import { progress } from '../harness/progress.js';
import { save } from '../harness/save.js';
import type { Spread } from '../harness/statistics.js';
import { benchDecode, type DecodeReport, type DecodeRow } from './decode-bench.js';
import { decodeMeasured } from './decode-metrics.js';
import { parseVariants } from './variants.js';

const { gguf, threads, tokens, prefill, warmup, context, runs } = SHARED;
const SHARED_BY_DECODE = { gguf, threads, tokens, prefill, warmup, context, runs: { ...runs, default: 5 } };

export function decodeOptions(y: Builder) {
  return y
    .positional('model', SHARED.model)
    .options(SHARED_BY_DECODE)
    .option('save', SHARED.save)
    .option('engine', { choices: Object.keys(ENGINES) as EngineName[], describe: '[default: native]' })
    .option('variants', {
      type: 'string',
      array: true,
      default: [] as string[],
      describe: 'compare options of ours, e.g. delayAware=on,off',
    })
    .option('profile', { type: 'boolean', default: false, describe: 'time of each kind of step' });
}

export async function runDecode(
  args: Awaited<ReturnType<ReturnType<typeof decodeOptions>['parse']>> & { json?: unknown },
): Promise<void> {
  const { model, gguf, engine, profile } = args;
  const base = { ...(engine ? { engine } : {}), ...(profile ? { profile } : {}) };
  await warnIfBusy();
  const line = progress(args.json === true);
  const report = await benchDecode({
    file: model,
    gguf,
    threads: await threadsOf(args.threads),
    tokens: count('tokens', args.tokens, 100_000),
    prefill: count('prefill', args.prefill, 100_000),
    warmup: count('warmup', args.warmup, 100_000),
    context: count('context', args.context, 100_000, 0),
    runs: count('runs', args.runs, 1_000),
    variants: parseVariants(args.variants, base),
    onRun: (subject, round) => line.step(`round ${round + 1} of ${args.runs}: ${subject}`),
  }).finally(line.stop);
  await save('decode', args, () => decodeMeasured(report));
  await print(args, { ...report, cpu: cpus()[0]?.model ?? 'unknown', node: process.version }, describe);
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
  'behind context',
  'prefill tok/s',
  'GB/s',
  '% of read',
  'barriers',
  'open ms',
  'first ms',
  'peak MiB',
];

function describe(report: DecodeReport & { cpu: string; node: string }): string {
  const { model, tokens, prefill, rounds, plannedBytesPerToken: planned, rows } = report;
  const bandwidth = Object.entries(report.readBandwidth).map(
    ([threads, speed]) => `read bandwidth, ${threads} threads: ${cell(speed, 1)} GB/s`,
  );
  const cells = rows.map((row) => [
    row.subject,
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
    `${model}: ${tokens} tokens one by one, a prompt of ${prefill}; ${rounds} rounds, median (min-max); ${report.cpu}, Node ${report.node}`,
    `${mega(planned)} MB of weights a token by the plan`,
    ...bandwidth,
    ...table([HEAD, ...cells]),
    ...rows.flatMap(describeRow),
  ].join('\n');
}

function describeRow({
  subject,
  backend,
  threads,
  countedBytesPerToken,
  firstTokenFileBytes,
  runs,
}: DecodeRow): string[] {
  const counted =
    countedBytesPerToken === undefined ? '' : `, ${mega(countedBytesPerToken)} MB a token counted`;
  const touched = firstTokenFileBytes
    ? `, ${mega(firstTokenFileBytes.median)} MB of mapped weights touched by the first token`
    : '';
  return [
    `${subject}: ${backend}, ${threads} threads${counted}${touched}`,
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
  return table([[`  ${title}`, 'calls', 'thread s', '%', 'GB/s'], ...rows]);
}
