/** Temporary names of exports, and what killed exports left under them. */

import { createHash, randomBytes } from 'node:crypto';
import { lstat, readdir, rm } from 'node:fs/promises';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { fileText } from '#cli-kit/bytes.js';
import { isRunning, type Owner, thisProcess } from './owner.js';

/** Process, its start, a hash of the machine's name, and a random part. */
const PARTIAL = /^\.cflow-(\d+)-(\d*)-([0-9a-f]{8})-[0-9a-f]{12}\.partial$/;

/** A name beside `target` that says who writes it. */
export function temporaryName(target: string): string {
  const { pid, started, host } = thisProcess();
  const random = randomBytes(6).toString('hex');
  return join(dirname(target), `.cflow-${pid}-${started}-${hostHash(host)}-${random}.partial`);
}

function hostHash(host: string): string {
  return createHash('sha256').update(host).digest('hex').slice(0, 8);
}

function ownerOf(name: string): Owner | undefined {
  const [, pid, started = '', hash] = PARTIAL.exec(name) ?? [];
  // Only this machine can tell whether its processes run.
  if (pid === undefined || hash !== hostHash(hostname())) return undefined;
  return { pid: Number(pid), host: hostname(), started };
}

/** Removes what exports that no longer run left beside `target`; returns a note for each. They cannot be continued. */
export async function removeOrphans(target: string): Promise<string[]> {
  const directory = dirname(target);
  const notes: string[] = [];
  for (const name of await readdir(directory).catch(() => [])) {
    const owner = ownerOf(name);
    if (!owner || isRunning(owner)) continue;
    const path = join(directory, name);
    const bytes = await bytesOf(path);
    const removed = await rm(path, { recursive: true }).then(
      () => true,
      () => false,
    );
    const size = fileText(bytes);
    if (removed) notes.push(`removed ${path}, ${size} that a killed export left`);
    else notes.push(`cannot remove ${path}, ${size} that a killed export left`);
  }
  return notes;
}

async function bytesOf(path: string): Promise<number> {
  const stats = await lstat(path).catch(() => undefined);
  if (!stats?.isDirectory()) return stats?.size ?? 0;
  let sum = 0;
  for (const name of await readdir(path).catch(() => [])) sum += await bytesOf(join(path, name));
  return sum;
}
