/**
 * Decode of our engine and llama.cpp on the same weights under the same memory cap. Each run is a process in a memory
 * cgroup that counts its page cache, and starts with an empty page cache of the file.
 */
import { stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { convert } from '@cflow/convert';
import { CflowError } from '@cflow/format';
import { parseBytes } from '#cli-kit/bytes.js';
import { loadPeer, noRepackLibrary } from '../../engines/llama.js';
import { experiment, type Run } from '../../runner/experiment.js';
import { withModelFile } from '../../runner/files.js';
import { MemoryGroup, runInGroup } from '../../runner/memory.js';
import { count, SHARED, threadsOf } from '../../runner/options.js';
import { interruption, temporaryFolder } from '../../runner/resources.js';
import { cappedMeasured, MAPPED, OURS, SHIPPED } from './measured.js';
import { dropPages, readAheadKib } from './page-cache.js';
import type { CappedReport } from './report.js';
import type { CappedJob, CappedLengths, CappedRun } from './run.js';

export interface CappedOptions extends CappedLengths {
  readonly file: string;
  /** The same weights for llama.cpp; absent: exported next to the model, then removed. */
  readonly gguf?: string | undefined;
  /** Limit of the cgroup and of our engine, bytes; absent: half of the file size. */
  readonly memory?: number | undefined;
  readonly threads: number;
  readonly runs: number;
}

const { gguf, memory, runs, threads, tokens, warmup } = SHARED;

export const capped = experiment({
  name: 'capped',
  positional: '<model>',
  describe: 'our engine and llama.cpp on the same weights under the same memory cap',
  options: (y) =>
    y
      .positional('model', SHARED.model)
      .options({ threads, runs, tokens: { ...tokens, default: 16 }, warmup: { ...warmup, default: 16 } })
      .option('gguf', { ...gguf, describe: `${gguf.describe} [default: exported, then removed]` })
      .option('memory', { ...memory, describe: `${memory.describe} [default: half of the file]` }),
  timed: true,
  measure: async (args, run) =>
    benchCapped(
      {
        file: args.model,
        gguf: args.gguf,
        memory: args.memory === undefined ? undefined : parseBytes(args.memory, '--memory'),
        runs: count('runs', args.runs, 1000),
        tokens: count('tokens', args.tokens, 100_000),
        warmup: count('warmup', args.warmup, 100_000, 0),
        threads: await threadsOf(args.threads),
      },
      run,
    ),
  results: cappedMeasured,
  shown: /^decode, times|^same token/,
});

/** @throws CflowError UNSUPPORTED (no node-llama-cpp, cgroup v1, dd or GGUF of the model), and errors of the runs */
export async function benchCapped(options: CappedOptions, run: Run): Promise<CappedReport> {
  // Report missing requirements before writing gigabytes.
  await loadPeer();
  await (await groupOf(2 ** 30)).remove();
  // Export to the disk of the model, so that both engines read from the same disk.
  const near = options.gguf === undefined ? dirname(options.file) : tmpdir();
  return temporaryFolder(near, 'capped', async (folder) => {
    const gguf = options.gguf ?? join(folder, 'model.gguf');
    if (options.gguf === undefined) {
      run.step('export to GGUF');
      await convert({ source: options.file, output: gguf, signal: interruption });
    }
    return measureAll(options, gguf, await noRepackLibrary(folder), run);
  });
}

interface Variant {
  readonly name: string;
  readonly job: CappedJob;
  readonly runs: number;
  readonly environment?: Readonly<Record<string, string>>;
}

async function measureAll(
  options: CappedOptions,
  gguf: string,
  library: string | undefined,
  run: Run,
): Promise<CappedReport> {
  const { file, threads, runs, warmup, tokens } = options;
  const { name, vocabSize } = await withModelFile(file, ({ config }) => config);
  const { size: fileBytes } = await stat(file);
  const memory = options.memory ?? Math.floor(fileBytes / 2);
  const common = { threads, memory, vocabSize, lengths: { warmup, tokens } };
  const theirs: CappedJob = { engine: 'llama.cpp', file: gguf, ...common };
  const variants: Variant[] = [
    { name: OURS, job: { engine: 'cflow', file, ...common }, runs },
    ...(library ? [{ name: MAPPED, job: theirs, runs, environment: { LD_PRELOAD: library } }] : []),
    { name: SHIPPED, job: theirs, runs: 1 },
  ];
  const tries = await run.turns({
    variants,
    rounds: runs,
    roundsOf: (variant) => variant.runs,
    name: (variant) => variant.name,
    async measure({ job, environment }) {
      await dropPages(job.file);
      return runInGroup<CappedRun>(await groupOf(memory), 'capped', job, environment);
    },
  });
  const rows = variants.map((variant, i) => ({ engine: variant.name, tries: tries[i]! }));
  return {
    model: name,
    fileBytes,
    memory,
    threads,
    warmup,
    tokens,
    readAheadKib: await readAheadKib(file),
    rows,
  };
}

/** @throws CflowError UNSUPPORTED: the comparison needs a cap */
async function groupOf(limit: number): Promise<MemoryGroup> {
  const group = await MemoryGroup.create('capped', limit);
  if (typeof group !== 'string') return group;
  throw new CflowError('UNSUPPORTED', group, {
    remedy: 'run as root on a system with the memory controller of cgroup v1',
  });
}
