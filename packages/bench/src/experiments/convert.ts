/** cflow-convert as users run it: a new process, by number of threads. */

import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { readdir, rm, stat } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { CflowError, type Container, DTYPE_NAMES, type Dtype } from '@cflow/format';
import { fileText } from '#cli-kit/bytes.js';
import { plural } from '#cli-kit/text.js';
import { leftFirst } from '../report/text.js';
import { runChild } from '../runner/child.js';
import { experiment, Run } from '../runner/experiment.js';
import { count, SHARED, threadCounts } from '../runner/options.js';
import { temporaryFolder } from '../runner/resources.js';
import { type Measured, metric } from '../runner/result.js';
import { spread } from '../runner/statistics.js';

export interface ConvertBenchOptions {
  readonly source: string;
  readonly dtype: Dtype;
  readonly container: Container;
  readonly scaleSearch: boolean;
  readonly threads: readonly number[];
  readonly runs: number;
  /** Directory for the outputs, which are removed. */
  readonly directory?: string | undefined;
}

export interface ConvertRow {
  readonly threads: number;
  /** Seconds of each run. */
  readonly seconds: readonly number[];
  readonly medianSeconds: number;
  readonly minSeconds: number;
  readonly maxSeconds: number;
  /** Weights read, median. */
  readonly megabytesPerSecond: number;
  /** Maximum of all runs. */
  readonly maxRssBytes: number;
}

export interface ConvertReport {
  readonly inputBytes: number;
  readonly runs: number;
  /** SHA-256 of the output; the same in every run. */
  readonly sha256: string;
  readonly rows: readonly ConvertRow[];
}

interface Conversion {
  readonly seconds: number;
  readonly rss: number;
  readonly sha256: string;
}

const CONTAINERS: readonly Container[] = ['cflow', 'vflow'];
const { directory, runs, threads } = SHARED;

export const convert = experiment({
  name: 'convert',
  positional: '<source>',
  describe: 'time and memory of converting a checkpoint, by number of threads',
  options: (y) =>
    y
      .positional('source', { type: 'string', demandOption: true, describe: 'checkpoint directory' })
      .option('dtype', { choices: DTYPE_NAMES, default: 'q4_0' as Dtype, describe: 'dtype of the weights' })
      .option('container', {
        choices: CONTAINERS,
        default: 'cflow' as Container,
        describe: 'file format of the output',
      })
      .option('scale-search', { type: 'boolean', default: true, describe: 'as in cflow-convert' })
      .option('threads', { ...threads, array: true, describe: 'to compare [default: 1, and CPUs allowed]' })
      .options({ runs, directory }),
  timed: true,
  measure: async ({ source, dtype, container, scaleSearch, directory, ...args }, run) =>
    benchConvert(
      {
        source,
        dtype,
        container,
        scaleSearch,
        threads: await threadCounts(args.threads),
        runs: count('runs', args.runs, 1_000),
        directory,
      },
      run,
    ),
  results: convertMeasured,
  json: withHost,
  text: (report) => describeConvert(withHost(report)),
});

/**
 * Converts `source` with each number of threads, interleaved.
 * @throws CflowError VERIFY_FAILED if two outputs differ, and errors of the conversion
 */
export async function benchConvert(options: ConvertBenchOptions, run = new Run()): Promise<ConvertReport> {
  const { source, threads, runs } = options;
  const inputBytes = await weightBytes(source);
  return temporaryFolder(options.directory ?? tmpdir(), 'bench', async (folder) => {
    let sha256: string | undefined;
    const results = await run.turns({
      variants: threads,
      rounds: runs,
      name: (threads) => plural(threads, 'thread'),
      measure: async (count, round) => {
        const result = await convertOnce(options, count, join(folder, `model.${options.container}`));
        sha256 ??= result.sha256;
        requireSame(sha256, result.sha256, count, round);
        return result;
      },
    });
    const rows = results.map((own, i) => rowOf(threads[i]!, own, inputBytes));
    return { inputBytes, runs, sha256: sha256 ?? '', rows };
  });
}

function requireSame(expected: string, actual: string, threads: number, round: number): void {
  if (expected === actual) return;
  throw new CflowError(
    'VERIFY_FAILED',
    `round ${round + 1} with ${plural(threads, 'thread')} gives SHA-256 ${actual}, expected ${expected}`,
    { remedy: 'conversion must not depend on threads or time; report this defect' },
  );
}

async function weightBytes(source: string): Promise<number> {
  const names = await readdir(source).catch((cause: NodeJS.ErrnoException) => {
    throw new CflowError('NOT_READABLE', `cannot open: ${cause.code}`, { file: source, cause });
  });
  const files = names.filter((name) => name.endsWith('.safetensors'));
  const sizes = await Promise.all(files.map(async (name) => (await stat(join(source, name))).size));
  return sizes.reduce((sum, size) => sum + size, 0);
}

async function convertOnce(
  { source, dtype, scaleSearch }: ConvertBenchOptions,
  threads: number,
  output: string,
): Promise<Conversion> {
  // Only the package entry can be resolved; the command is in the same directory.
  const entry = pathToFileURL(createRequire(import.meta.url).resolve('@cflow/convert'));
  const args = [source, output, '--dtype', dtype, '--threads', String(threads), '--json'];
  if (!scaleSearch) args.push('--no-scale-search');
  const started = performance.now();
  const job = { command: new URL('./cli.js', entry).href, args };
  const { peakBytes } = await runChild<{ peakBytes: number }>('convert', job);
  const seconds = (performance.now() - started) / 1000;
  const sha256 = await sha256Of(output);
  await rm(output);
  return { seconds, rss: peakBytes, sha256 };
}

async function sha256Of(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const piece of createReadStream(path, { highWaterMark: 1 << 20 })) hash.update(piece as Buffer);
  return hash.digest('hex');
}

function rowOf(threads: number, runs: readonly Conversion[], inputBytes: number): ConvertRow {
  const seconds = runs.map((run) => run.seconds);
  const { median, min, max } = spread(seconds);
  return {
    threads,
    seconds,
    medianSeconds: median,
    minSeconds: min,
    maxSeconds: max,
    megabytesPerSecond: inputBytes / 1e6 / median,
    maxRssBytes: Math.max(...runs.map(({ rss }) => rss)),
  };
}

function convertMeasured({ rows, inputBytes }: ConvertReport): Measured {
  const metrics = rows.flatMap(({ threads, seconds, maxRssBytes }) => {
    const rates = seconds.map((s) => inputBytes / 1e9 / s);
    return [
      metric(`${plural(threads, 'thread')}: weights read`, 'GB/s', 'higher', rates),
      metric(`${plural(threads, 'thread')}: peak memory`, 'MB', 'lower', [maxRssBytes / 1e6]),
    ];
  });
  return { metrics };
}

function withHost(report: ConvertReport) {
  return { ...report, cpu: cpus()[0]?.model ?? 'unknown', node: process.version };
}

function describeConvert(report: ReturnType<typeof withHost>): string {
  const head = ['threads', 'median s', 'min s', 'max s', 'MB/s', 'max RSS MiB'];
  const rows = report.rows.map((row) => [
    String(row.threads),
    ...[row.medianSeconds, row.minSeconds, row.maxSeconds].map((s) => s.toFixed(2)),
    row.megabytesPerSecond.toFixed(1),
    (row.maxRssBytes / 2 ** 20).toFixed(0),
  ]);
  return [
    `${fileText(report.inputBytes)} of weights, ${report.runs} runs each, interleaved; ${report.cpu}, Node ${report.node}`,
    ...leftFirst([head, ...rows]),
    `SHA-256 of every output: ${report.sha256}`,
  ].join('\n');
}
