/** Page cache and readahead of a file. */
import { execFile } from 'node:child_process';
import { open, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { CflowError } from '@cflow/format';

/**
 * Drops a file from the page cache: pages charged to an earlier process are free for a later one.
 * @throws CflowError UNSUPPORTED without GNU dd
 */
export async function dropPages(file: string): Promise<void> {
  const handle = await open(file);
  // Dirty pages cannot be dropped.
  await handle.sync().finally(() => handle.close());
  try {
    await promisify(execFile)('dd', [`if=${file}`, 'iflag=nocache', 'count=0', 'status=none']);
  } catch (cause) {
    throw new CflowError('UNSUPPORTED', 'dd cannot drop the page cache of the file', {
      file,
      cause,
      remedy: 'install GNU coreutils',
    });
  }
}

/** Major and minor number, as Linux packs them into `st_dev`. */
export function deviceNumbers(device: number): string {
  const high = Math.floor(device / 2 ** 32);
  const low = device >>> 0;
  const major = ((low >>> 8) & 0xfff) | (high & ~0xfff);
  const minor = (low & 0xff) | ((low >>> 12) & 0xfff00);
  return `${major}:${minor}`;
}

/** Readahead of page faults, KiB; undefined if the file system has no disk. */
export async function readAheadKib(file: string, root = '/sys/dev/block'): Promise<number | undefined> {
  const device = join(root, deviceNumbers((await stat(file)).dev));
  // A partition uses the setting of its disk.
  for (const queue of ['queue', '../queue']) {
    // Not `join`: the directory is a symbolic link, and `..` refers to its target.
    const found = await readFile(`${device}/${queue}/read_ahead_kb`, 'utf8').catch(() => undefined);
    if (found !== undefined) return Number(found);
  }
  return undefined;
}
