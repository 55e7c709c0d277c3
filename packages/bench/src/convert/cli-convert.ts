/** `cflow-bench convert`. */
import { cpus } from 'node:os';
import { type Container, DTYPE_NAMES, type Dtype } from '@cflow/format';
import { type Builder, count, mega, print, SHARED, threadCounts } from '../harness/cli-common.js';
import { type Measured, metric } from '../harness/result.js';
import { save } from '../harness/save.js';
import { benchConvert, type ConvertReport } from './convert-bench.js';

const CONTAINERS: readonly Container[] = ['cflow', 'vflow'];

const { directory, runs, threads } = SHARED;

export function convertOptions(y: Builder) {
  return y
    .positional('source', { type: 'string', demandOption: true, describe: 'checkpoint directory' })
    .option('dtype', { choices: DTYPE_NAMES, default: 'q4_0' as Dtype, describe: 'tile dtype' })
    .option('container', { choices: CONTAINERS, default: 'cflow' as Container, describe: 'of the output' })
    .option('scale-search', { type: 'boolean', default: true, describe: 'as cflow-convert has it' })
    .option('threads', { ...threads, array: true, describe: 'to compare [default: 1, and CPUs allowed]' })
    .options({ runs, directory })
    .option('save', SHARED.save);
}

export async function runConvert(
  args: Awaited<ReturnType<ReturnType<typeof convertOptions>['parse']>>,
): Promise<void> {
  const { source, dtype, container, scaleSearch, directory } = args;
  const report = await benchConvert({
    source,
    dtype,
    container,
    scaleSearch,
    threads: await threadCounts(args.threads),
    runs: count('runs', args.runs, 1_000),
    ...(directory === undefined ? {} : { directory }),
  });
  await save('convert', args, () => convertMeasured(report));
  await print(
    args,
    { ...report, cpu: cpus()[0]?.model ?? 'unknown', node: process.version },
    describeConvert,
  );
}

function convertMeasured({ rows, inputBytes }: ConvertReport): Measured {
  const metrics = rows.flatMap(({ threads, seconds, maxRssBytes }) => {
    const rates = seconds.map((s) => inputBytes / 1e9 / s);
    return [
      metric(`${threads} threads: weights read`, 'GB/s', 'higher', rates),
      metric(`${threads} threads: peak memory`, 'MB', 'lower', [maxRssBytes / 1e6]),
    ];
  });
  return { metrics };
}

function describeConvert(report: ConvertReport & { cpu: string; node: string }): string {
  const head = ['threads', 'median s', 'min s', 'max s', 'MB/s', 'max RSS MiB'];
  const rows = report.rows.map((r) => [
    String(r.threads),
    ...[r.medianSeconds, r.minSeconds, r.maxSeconds].map((s) => s.toFixed(2)),
    r.megabytesPerSecond.toFixed(1),
    (r.maxRssBytes / 2 ** 20).toFixed(0),
  ]);
  return [
    `${mega(report.inputBytes)} MB of weights, ${report.runs} runs each, in turns; ${report.cpu}, Node ${report.node}`,
    ...[head, ...rows].map((row) => row.map((cell) => cell.padStart(12)).join('')),
    `sha256 of every output: ${report.sha256}`,
  ].join('\n');
}
