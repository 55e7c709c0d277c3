/** Describes this machine, and measures its limits. */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { constants, existsSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { cpus, loadavg, release, tmpdir, totalmem, type } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { threadBudget } from '@cflow/runtime-native';
import { nativeMachine } from '@cflow/runtime-native/internal/native/machine.js';
import { runChild } from './child.js';
import { temporaryFolder } from './resources.js';
import type { Machine } from './result.js';
import { spreadOf } from './statistics.js';

const DIGITS = 12;
/** Relative to the folder of this module, in src/ or dist/. */
const ROOT = '../../../..';

export interface MachineOptions {
  /** Directory whose disk is measured; the one for temporary files by default. */
  readonly directory?: string | undefined;
}

/** Takes about two seconds: measures memory bandwidth and disk in a child process. */
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

/** Limit of the cgroup, if below the memory of the machine. */
export function memoryLimit(): number {
  const limit = process.constrainedMemory();
  return limit > 0 && limit < totalmem() ? limit : totalmem();
}

/** Not the commit of a repository that only has this package installed. */
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
/** Candidate alignments of direct I/O in a fresh buffer: allocators put a header before the data. */
const PAGE = 4096;
const ALIGNMENTS = Array.from({ length: PAGE / 16 }, (_, i) => PAGE - 16 * (i + 1)).concat(0);

const rate = (from: number) => (PIECE * PIECES) / (performance.now() - from) / 1e6;

/** GB/s of 96 MiB; `read` is null without direct I/O, the result is null if nothing can be written. */
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

/** JavaScript exposes no addresses; the kernel rejects a misaligned one. @throws the error of the kernel if it rejects all */
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

/** Many times the last-level cache. */
const READ_BYTES = 2 ** 30;
const READ_PASSES = 5;

/** @returns GB/s (10^9 bytes) of five passes of plain memory reads by that many threads; empty without the addon */
export function readBandwidth(threads: number, bytes = READ_BYTES): Promise<number[]> {
  return runChild<number[]>('bandwidth', { threads, bytes });
}

interface MemoryJob {
  readonly threads: number;
  readonly bytes: number;
}

/** The job of `readBandwidth`, in a child process that frees the memory. */
export async function readMemory({ threads, bytes }: MemoryJob): Promise<number[]> {
  return (await nativeMachine()?.readBandwidth(bytes, threads, READ_PASSES)) ?? [];
}
