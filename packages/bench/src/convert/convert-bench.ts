/** Measures cflow-convert as its users meet it: as a process of its own, from a cold start. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { readdir, rm, stat } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { pathToFileURL } from 'node:url';
import { CflowError, type Container, type Dtype } from '@cflow/format';
import { childScript, codeOf } from '../harness/child.js';
import { spawnHeld, temporaryFolder, throwIfInterrupted } from '../harness/resources.js';
import { spread } from '../harness/statistics.js';

export interface ConvertBenchOptions {
  readonly source: string;
  readonly dtype: Dtype;
  readonly container: Container;
  readonly scaleSearch: boolean;
  readonly threads: readonly number[];
  readonly runs: number;
  /** Where the outputs go for as long as the benchmark takes. */
  readonly directory?: string;
}

export interface ConvertRow {
  readonly threads: number;
  /** Of each run. */
  readonly seconds: readonly number[];
  readonly medianSeconds: number;
  readonly minSeconds: number;
  readonly maxSeconds: number;
  /** Of weights read, by the median. */
  readonly megabytesPerSecond: number;
  /** Largest of all runs. */
  readonly maxRssBytes: number;
}

export interface ConvertReport {
  readonly inputBytes: number;
  readonly runs: number;
  /** The same for every run, or the benchmark fails. */
  readonly sha256: string;
  readonly rows: readonly ConvertRow[];
}

interface Run {
  readonly seconds: number;
  readonly rss: number;
  readonly sha256: string;
}

/**
 * Converts `source` `runs` times with each number of threads, in turns, so that a slow minute of the machine meets all.
 * @throws CflowError VERIFY_FAILED if two outputs differ; whatever the conversion fails with
 */
export async function benchConvert(options: ConvertBenchOptions): Promise<ConvertReport> {
  const inputBytes = await weightBytes(options.source);
  const results = new Map<number, Run[]>(options.threads.map((threads) => [threads, []]));
  let sha256: string | undefined;
  await temporaryFolder(options.directory ?? tmpdir(), 'bench', async (directory) => {
    for (let run = 0; run < options.runs; run++) {
      for (const [threads, runs] of results) {
        const result = await convertOnce(options, threads, join(directory, `model.${options.container}`));
        sha256 ??= result.sha256;
        requireSame(sha256, result.sha256, threads, run);
        runs.push(result);
      }
    }
  });
  const rows = [...results].map(([threads, runs]) => rowOf(threads, runs, inputBytes));
  return { inputBytes, runs: options.runs, sha256: sha256 ?? '', rows };
}

function requireSame(expected: string, actual: string, threads: number, run: number): void {
  if (expected === actual) return;
  throw new CflowError(
    'VERIFY_FAILED',
    `run ${run + 1} with ${threads} threads gives ${actual}, expected ${expected}`,
    { remedy: 'conversion must not depend on threads or time; this is a defect' },
  );
}

async function weightBytes(source: string): Promise<number> {
  const names = await readdir(source).catch((cause: NodeJS.ErrnoException) => {
    throw new CflowError('NOT_READABLE', `cannot open: ${cause.code}`, { file: source, cause });
  });
  let total = 0;
  for (const name of names.filter((n) => n.endsWith('.safetensors'))) {
    total += (await stat(join(source, name))).size;
  }
  return total;
}

async function convertOnce(
  { source, dtype, scaleSearch }: ConvertBenchOptions,
  threads: number,
  output: string,
): Promise<Run> {
  // Only the package's entry can be resolved; the command lies beside it.
  const entry = pathToFileURL(createRequire(import.meta.url).resolve('@cflow/convert'));
  const args = [source, output, '--dtype', dtype, '--threads', String(threads), '--json'];
  if (!scaleSearch) args.push('--no-scale-search');
  const started = performance.now();
  const child = spawnHeld(
    process.execPath,
    [childScript('convert/convert-child'), new URL('./cli.js', entry).href, ...args],
    {
      stdio: ['ignore', 'ignore', 'pipe', 'pipe'],
    },
  );
  const messages = text(child.stderr!);
  const rss = text(child.stdio[3] as NodeJS.ReadableStream);
  const exit = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', resolve);
  });
  const seconds = (performance.now() - started) / 1000;
  throwIfInterrupted();
  if (exit !== 0)
    throw new CflowError(codeOf(exit), (await messages).trim() || `cflow-convert exits ${exit}`);
  const sha256 = await sha256Of(output);
  await rm(output);
  return { seconds, rss: Number(await rss), sha256 };
}

async function sha256Of(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const piece of createReadStream(path, { highWaterMark: 1 << 20 })) hash.update(piece as Buffer);
  return hash.digest('hex');
}

function rowOf(threads: number, runs: readonly Run[], inputBytes: number): ConvertRow {
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
