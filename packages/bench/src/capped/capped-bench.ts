/**
 * Our engine and llama.cpp decoding the same weights under the same memory cap: each run is a process of its own in a
 * memory cgroup that counts its page cache, begins with nothing of the file in memory, and takes turns with the others.
 */
import { stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { convert } from '@cflow/convert';
import { CflowError, openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { loadPeer } from '../decode/run-llama.js';
import { runChild } from '../harness/child.js';
import { type GroupUse, MemoryGroup } from '../harness/memory-group.js';
import { interruption, temporaryFolder } from '../harness/resources.js';
import type { CappedJob, CappedLengths, CappedRun, EngineName } from './capped-job.js';
import { noRepackLibrary } from './no-repack.js';
import { dropPages, readAheadKib } from './page-cache.js';

export interface CappedOptions extends CappedLengths {
  readonly file: string;
  /** The same weights for llama.cpp; absent: exported beside the model, and removed again. */
  readonly gguf?: string | undefined;
  /** Bytes of the cgroup, of which our engine is told; absent: half of the file. */
  readonly memory?: number | undefined;
  readonly threads: number;
  readonly runs: number;
  readonly onStep?: (text: string) => void;
}

/** One run. */
export interface CappedTry {
  /** Undefined if the kernel ended it for its memory. */
  readonly run: CappedRun | undefined;
  readonly group: GroupUse;
}

export interface CappedRow {
  readonly subject: string;
  readonly tries: readonly CappedTry[];
}

export interface CappedReport extends CappedLengths {
  readonly model: string;
  readonly fileBytes: number;
  readonly memory: number;
  readonly threads: number;
  readonly readAheadKib: number | undefined;
  readonly rows: readonly CappedRow[];
}

export const OURS = 'cflow';
export const SHIPPED = 'llama.cpp as shipped';
export const MAPPED = 'llama.cpp, not repacked';

/** @throws CflowError UNSUPPORTED (no peer, no cgroup v1, no dd, no GGUF of the model), and whatever a run fails with */
export async function benchCapped(options: CappedOptions): Promise<CappedReport> {
  // Before gigabytes are written.
  await loadPeer();
  await (await groupOf(2 ** 30)).remove();
  // An export lies on the disk of the model, so that both are read from the same.
  const near = options.gguf === undefined ? dirname(options.file) : tmpdir();
  return temporaryFolder(near, 'capped', async (folder) => {
    const gguf = options.gguf ?? (await exportTo(join(folder, 'model.gguf'), options));
    return measureAll(options, gguf, await noRepackLibrary(folder));
  });
}

async function exportTo(output: string, { file, onStep }: CappedOptions): Promise<string> {
  onStep?.('export to GGUF');
  await convert({ source: file, output, signal: interruption });
  return output;
}

interface Subject {
  readonly name: string;
  readonly job: CappedJob;
  readonly runs: number;
  readonly environment?: Readonly<Record<string, string>>;
  readonly tries: CappedTry[];
}

async function measureAll(
  options: CappedOptions,
  gguf: string,
  library: string | undefined,
): Promise<CappedReport> {
  const { file, threads, runs, warmup, tokens, onStep } = options;
  const { name, vocabSize } = await configOf(file);
  const { size: fileBytes } = await stat(file);
  const memory = options.memory ?? Math.floor(fileBytes / 2);
  const subject = (title: string, engine: EngineName, most: number, environment = {}): Subject => {
    const job = { engine, file: engine === 'cflow' ? file : gguf, threads, memory, vocabSize };
    return { name: title, job: { ...job, lengths: { warmup, tokens } }, runs: most, environment, tries: [] };
  };
  const subjects = [
    subject(OURS, 'cflow', runs),
    ...(library ? [subject(MAPPED, 'llama.cpp', runs, { LD_PRELOAD: library })] : []),
    subject(SHIPPED, 'llama.cpp', 1),
  ];
  for (let round = 0; round < runs; round++) {
    for (const each of subjects.filter((one) => one.runs > round)) {
      onStep?.(`run ${round + 1} of ${each.runs}: ${each.name}`);
      each.tries.push(await runOnce(each));
    }
  }
  const rows = subjects.map(({ name: title, tries }) => ({ subject: title, tries }));
  const readAhead = await readAheadKib(file);
  return { model: name, fileBytes, memory, threads, warmup, tokens, readAheadKib: readAhead, rows };
}

async function configOf(file: string) {
  const source = await openFileSource(file);
  try {
    return (await openModel(source)).config;
  } finally {
    await source.close();
  }
}

/** A run that is killed for its memory is a finding, not a failure. */
async function runOnce({ job, environment }: Subject): Promise<CappedTry> {
  await dropPages(job.file);
  const group = await groupOf(job.memory);
  try {
    const asked = { ...job, group: group.folder };
    const run = await runChild<CappedRun>('capped/capped-child', asked, environment).catch(
      async (error: unknown) => {
        if ((await group.use()).killed) return undefined;
        throw error;
      },
    );
    return { run, group: await group.use() };
  } finally {
    await group.remove();
  }
}

/** @throws CflowError UNSUPPORTED: without a cap there is nothing to compare */
async function groupOf(limit: number): Promise<MemoryGroup> {
  const group = await MemoryGroup.create('capped', limit);
  if (typeof group !== 'string') return group;
  throw new CflowError('UNSUPPORTED', group, {
    remedy: 'run as root where cgroup v1 has its memory controller',
  });
}
