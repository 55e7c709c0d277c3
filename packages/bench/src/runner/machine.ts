/** Describes this machine, and measures its limits. */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { constants, existsSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { cpus, loadavg, release, tmpdir, totalmem, type } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { nativeMachine, threadBudget } from '@cflow/runtime-native';
import { runChild } from './child.js';
import { temporaryFolder } from './resources.js';
import type { Machine } from './result.js';
import { spreadOf } from './statistics.js';

const DIGITS = 12;
/** From the folder of this module, in src/ or dist/. */
const ROOT = '../../../..';

export interface MachineOptions {
  /** Where the disk is measured; the directory for temporary files by default. */
  readonly directory?: string | undefined;
}

/** Takes about two seconds: read bandwidth and disk are measured, in a process of their own. */
export async function describeMachine({ directory = tmpdir() }: MachineOptions = {}): Promise<Machine> {
  const [load = 0] = loadavg();
  const { threads, reason } = await threadBudget();
  const bandwidth = spreadOf(await readBandwidth(threads));
  return {
    cpu: cpus()[0]?.model.trim() || 'unknown',
    isa: nativeMachine()?.isa().selected ?? null,
    cores: { online: cpus().length || 1, allowed: threads, why: reason, load: Number(load.toFixed(2)) },
    memoryLimit: memoryLimit(),
    readBandwidth: bandwidth ? { threads, ...bandwidth } : null,
    disk: await diskLimits(directory),
    os: `${type()} ${release()}`,
    node: process.version,
    commit: await commitOf(import.meta.dirname),
  };
}

/** Of the cgroup, where it is less than the machine has. */
export function memoryLimit(): number {
  const limit = process.constrainedMemory();
  return limit > 0 && limit < totalmem() ? limit : totalmem();
}

/** Not of a repository that this package is installed in. */
async function commitOf(folder: string): Promise<string | null> {
  if (!existsSync(join(folder, ROOT, '.git'))) return null;
  const args = ['describe', '--always', '--dirty', `--abbrev=${DIGITS}`, '--exclude=*'];
  const run = promisify(execFile)('git', args, { cwd: folder, encoding: 'utf8' });
  return run.then(
    ({ stdout }) => stdout.trim(),
    () => null,
  );
}

const PIECE = 2 ** 22;
const PIECES = 24;
/** Where memory that direct reads accept may begin within a fresh buffer: allocators put a header before it. */
const PAGE = 4096;
const ALIGNMENTS = Array.from({ length: PAGE / 16 }, (_, i) => PAGE - 16 * (i + 1)).concat(0);

const rate = (from: number) => (PIECE * PIECES) / (performance.now() - from) / 1e6;

/** 10^9 bytes a second of 96 MiB; `read` is null where direct reads are not to be had, all where nothing can be written. */
export async function diskLimits(directory: string): Promise<{ write: number; read: number | null } | null> {
  return temporaryFolder(directory, 'disk', async (folder) => {
    const file = join(folder, 'x');
    return { write: await writeThrough(file), read: await readDirect(file).catch(() => null) };
  }).catch(() => null);
}

async function writeThrough(file: string): Promise<number> {
  const piece = randomBytes(PIECE);
  const handle = await open(file, 'wx');
  try {
    const from = performance.now();
    for (let i = 0; i < PIECES; i++) await handle.write(piece, 0, PIECE, i * PIECE);
    await handle.sync();
    return rate(from);
  } finally {
    await handle.close();
  }
}

async function readDirect(file: string): Promise<number | null> {
  const direct = constants.O_DIRECT;
  if (direct === undefined) return null;
  const handle = await open(file, constants.O_RDONLY | direct);
  try {
    const buffer = await alignedFor(handle);
    const from = performance.now();
    for (let i = 0; i < PIECES; i++) await handle.read(buffer, 0, PIECE, i * PIECE);
    return rate(from);
  } finally {
    await handle.close();
  }
}

/** JavaScript does not tell addresses; the kernel refuses a wrong one. @throws its refusal, if it takes none */
async function alignedFor(handle: FileHandle): Promise<Buffer> {
  const memory = Buffer.allocUnsafeSlow(PIECE + PAGE);
  let refusal: unknown;
  for (const offset of ALIGNMENTS) {
    const buffer = memory.subarray(offset, offset + PIECE);
    try {
      await handle.read(buffer, 0, PAGE, 0);
      return buffer;
    } catch (error) {
      refusal = error;
    }
  }
  throw refusal;
}

const READ_BYTES = 2 ** 30;
const READ_PASSES = 5;

/** @returns GB/s (10^9 bytes) of five passes of plain memory reads by that many threads; empty without the addon */
export function readBandwidth(threads: number): Promise<number[]> {
  return runChild<number[]>('bandwidth', { threads });
}

/** The job of `readBandwidth`: 1 GiB, many times the last-level cache, which the process gives back when it ends. */
export async function readMemory({ threads }: { readonly threads: number }): Promise<number[]> {
  return (await nativeMachine()?.readBandwidth(READ_BYTES, threads, READ_PASSES)) ?? [];
}
