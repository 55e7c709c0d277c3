/** Read bandwidths of memory and disk: measured once, kept in the user's cache directory. */
import { mkdir, readFile, rename, stat, writeFile } from 'node:fs/promises';
import { homedir, hostname } from 'node:os';
import { dirname, join } from 'node:path';
import type { Addon, IoChoice } from '../native/addon.js';
import type { Bandwidths } from './configure.js';

export interface MeasuredFile {
  readonly name: string;
  readonly fd: number;
  readonly size: number;
}

/** Long enough for a steady rate. */
const DISK_MILLISECONDS = 120;
const DISK_RUNS = 4;
const DISK_BYTES = 64 * 2 ** 20;
const PAGE = 4096;
const MEMORY_BYTES = 256 * 2 ** 20;

/**
 * Bytes per second; reuses a figure measured before on the same device with the same options.
 * @param room bytes of memory that the measurement may take
 */
export async function bandwidths(
  addon: Addon,
  file: MeasuredFile,
  { threads, io, room }: { threads: number; io: IoChoice; room: number },
): Promise<Bandwidths> {
  const bytes = Math.min(MEMORY_BYTES, 2 ** Math.floor(Math.log2(Math.max(PAGE, room))));
  const path = cachePath();
  const known = await readKept(path);
  const device = await stat(`/proc/self/fd/${file.fd}`).then(
    ({ dev }) => dev,
    () => 0,
  );
  const keys = {
    memory: `${hostname()}: memory ${threads} threads ${bytes}`,
    disk: `${hostname()}: disk ${device} ${io.block} ${io.depth} ${io.backend} ${io.mode}`,
  };
  const memory = known[keys.memory] ?? (await memoryBandwidth(addon, threads, bytes));
  const disk = known[keys.disk] ?? (await diskBandwidth(addon, file, io, room));
  const fresh = known[keys.memory] === undefined || known[keys.disk] === undefined;
  if (fresh) await keep(path, { ...known, [keys.memory]: memory, [keys.disk]: disk });
  return { memory, disk };
}

async function memoryBandwidth(addon: Addon, threads: number, bytes: number): Promise<number> {
  const runs = await addon.readBandwidth(bytes, threads, 5);
  return 1e9 * Math.max(...runs);
}

/** The best of some runs: other load makes a disk look slower, never faster. */
async function diskBandwidth(
  addon: Addon,
  { fd, size }: MeasuredFile,
  io: IoChoice,
  room: number,
): Promise<number> {
  // A small file or little memory allows less.
  const most = Math.min(size, Math.min(DISK_BYTES, room) / io.depth);
  const block = Math.min(io.block, Math.max(PAGE, Math.floor(most / PAGE) * PAGE));
  let best = 0;
  for (let run = 0; run < DISK_RUNS; run++) {
    const { bytes, seconds } = await addon.diskBandwidth(fd, size, {
      ...io,
      block,
      milliseconds: DISK_MILLISECONDS,
    });
    best = Math.max(best, bytes / seconds);
  }
  return best;
}

function cachePath(): string {
  return join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'cflow', 'bandwidths.json');
}

/** Figures measured before; an absent or foreign file counts as empty. */
async function readKept(path: string): Promise<Readonly<Record<string, number>>> {
  try {
    const kept: unknown = JSON.parse(await readFile(path, 'utf8'));
    const rates = Object.entries(kept ?? {}).filter(([, rate]) => Number.isFinite(rate) && rate > 0);
    return Object.fromEntries(rates);
  } catch {
    return {};
  }
}

/** Running a model needs no write permission: what cannot be kept is measured again. */
async function keep(path: string, values: Readonly<Record<string, number>>): Promise<void> {
  try {
    await mkdir(dirname(path), { recursive: true });
    const partial = `${path}.${process.pid}`;
    await writeFile(partial, `${JSON.stringify(values, undefined, 2)}\n`);
    await rename(partial, path);
  } catch {
    // Measured again next time.
  }
}
