/** What the kernel keeps of a file, and how far it reads ahead. */
import { execFile } from 'node:child_process';
import { open, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { CflowError } from '@cflow/format';

/**
 * Takes a file out of the page cache: pages that an earlier process is charged for cost a later one nothing.
 * @throws CflowError UNSUPPORTED where GNU dd is not there
 */
export async function dropPages(file: string): Promise<void> {
  const handle = await open(file);
  // What is not written yet cannot be dropped.
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

/** KiB that a mapped page brings with it; undefined where the file system has no disk of its own. */
export async function readAheadKib(file: string, root = '/sys/dev/block'): Promise<number | undefined> {
  const device = join(root, deviceNumbers((await stat(file)).dev));
  // A partition has what its disk has.
  for (const queue of ['queue', '../queue']) {
    // Not joined: the folder is a link, and `..` is meant behind it.
    const found = await readFile(`${device}/${queue}/read_ahead_kb`, 'utf8').catch(() => undefined);
    if (found !== undefined) return Number(found);
  }
  return undefined;
}
