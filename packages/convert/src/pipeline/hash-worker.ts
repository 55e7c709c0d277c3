/** The thread that hashes source files. It imports little, because it starts with every conversion. */
import { createHash } from 'node:crypto';
import { closeSync, openSync, readSync } from 'node:fs';
import { type MessagePort, parentPort, receiveMessageOnPort } from 'node:worker_threads';
import { sha256Blocks } from '@cflow/runtime-native/sha256';
import { type HashJob, hashFiles } from './hash-lanes.js';
import { answer, answerFailure, type Request, serveTasks } from './serve.js';

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

function jobOf({ job, task }: Request<HashTask>): HashJob {
  return {
    path: task.path,
    done: (sha256) => answer(job, { sha256 }),
    failed: (error) => answerFailure(job, error),
  };
}

/** A task starts the work on all that have been sent, so that two of them go side by side. */
function serveTogether(port: MessagePort, blocks: NonNullable<ReturnType<typeof sha256Blocks>>): void {
  port.on('message', (first: Request<HashTask>) => {
    let waiting: Request<HashTask> | undefined = first;
    hashFiles(blocks, () => {
      const request: Request<HashTask> | undefined = waiting ?? receiveMessageOnPort(port)?.message;
      waiting = undefined;
      return request && jobOf(request);
    });
  });
}

const blocks = sha256Blocks();
if (blocks && parentPort) serveTogether(parentPort, blocks);
else serveTasks<HashTask>(runHash);
