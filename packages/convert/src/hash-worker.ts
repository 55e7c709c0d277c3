/** The thread that hashes source files. It imports little, because it starts with every conversion. */
import { createHash } from 'node:crypto';
import { closeSync, openSync, readSync } from 'node:fs';
import { serveTasks } from './serve.js';

export interface HashTask {
  readonly kind: 'hash';
  readonly path: string;
}
export interface HashResult {
  readonly sha256: string;
}

/** Small enough to stay in a cache between reading and hashing. */
const HASH_BYTES = 256 * 1024;

function runHash({ path }: HashTask): HashResult {
  const hash = createHash('sha256');
  const bytes = Buffer.allocUnsafeSlow(HASH_BYTES);
  const fd = openSync(path, 'r');
  try {
    for (;;) {
      const got = readSync(fd, bytes, 0, HASH_BYTES, null);
      if (got === 0) break;
      hash.update(bytes.subarray(0, got));
    }
  } finally {
    closeSync(fd);
  }
  return { sha256: hash.digest('hex') };
}

serveTasks<HashTask>(runHash);
