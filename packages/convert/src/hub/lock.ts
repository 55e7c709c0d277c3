/** One process at a time fetches a file into the cache; the others wait for it. */
import { readFile, unlink, writeFile } from 'node:fs/promises';
import { errno } from '@cflow/format/node';
import { throwIfInterrupted } from '../pipeline/interrupt.js';
import { isRunning, ownerSchema, thisProcess } from '../targets/owner.js';
import { unwritable } from './cache.js';

const POLL_MS = 200;

/**
 * What `work` returns, while `path` exists and names this process. A lock whose process has ended counts for nothing.
 * Two that take over one such lock at the same instant write the same bytes to the same places.
 * @throws CflowError INTERRUPTED, WRITE_FAILED
 */
export async function locked<T>(
  path: string,
  signal: AbortSignal | undefined,
  work: () => Promise<T>,
): Promise<T> {
  while (!(await take(path))) {
    throwIfInterrupted(signal);
    if (await isHeld(path)) await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    else await unlink(path).catch(() => undefined);
  }
  try {
    return await work();
  } finally {
    await unlink(path).catch(() => undefined);
  }
}

async function take(path: string): Promise<boolean> {
  try {
    await writeFile(path, JSON.stringify(thisProcess()), { flag: 'wx' });
    return true;
  } catch (cause) {
    if (errno(cause) === 'EEXIST') return false;
    throw unwritable(path, cause);
  }
}

async function isHeld(path: string): Promise<boolean> {
  // Between its creation and its text a lock is empty.
  for (let tries = 0; tries < 5; tries++) {
    const text = await readFile(path, 'utf8').catch(() => undefined);
    if (text === undefined) return false;
    if (text.endsWith('}')) {
      const owner = ownerSchema.safeParse(JSON.parse(text));
      return owner.success && isRunning(owner.data);
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  return false;
}
