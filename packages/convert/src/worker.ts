/** The thread that quantizes: rows in, bytes of a stripe out. Also hashes source files. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { parentPort } from 'node:worker_threads';
import { type Dtype, quantizeStripe, type StripeId } from '@cflow/format';

export interface StripeTask {
  readonly kind: 'stripe';
  readonly dtype: Dtype;
  readonly values: Float32Array;
  readonly rows: number;
  readonly cols: number;
  readonly id: StripeId;
  readonly scaleSearch: boolean;
  readonly zeroNonfinite: boolean;
}
export interface HashTask {
  readonly kind: 'hash';
  readonly path: string;
}
export type Task = StripeTask | HashTask;
/** `nonfinite`: index and value of the first weight that is NaN or infinite. */
export type TaskResult = { bytes: Uint8Array } | { sha256: string } | { nonfinite: number; value: number };

/** Index of the first NaN or Inf, −1 if there is none; with `zero` they are replaced instead. */
export function findNonfinite(values: Float32Array, zero: boolean): number {
  for (let i = 0; i < values.length; i++) {
    if (Number.isFinite(values[i]!)) continue;
    if (!zero) return i;
    values[i] = 0;
  }
  return -1;
}

function runStripe(task: StripeTask): TaskResult {
  const { dtype, values, rows, cols, id, scaleSearch, zeroNonfinite } = task;
  const bad = findNonfinite(values, zeroNonfinite);
  if (bad >= 0) return { nonfinite: bad, value: values[bad]! };
  return { bytes: quantizeStripe(dtype, values, rows, cols, id, { scaleSearch }) };
}

async function runHash({ path }: HashTask): Promise<TaskResult> {
  const hash = createHash('sha256');
  for await (const piece of createReadStream(path, { highWaterMark: 1 << 20 })) hash.update(piece as Buffer);
  return { sha256: hash.digest('hex') };
}

parentPort?.on('message', async ({ job, task }: { job: number; task: Task }) => {
  try {
    const result = task.kind === 'stripe' ? runStripe(task) : await runHash(task);
    const transfer = 'bytes' in result ? [result.bytes.buffer as ArrayBuffer] : [];
    parentPort!.postMessage({ job, result }, transfer);
  } catch (error) {
    const { message, code, details } = error as Error & { code?: string; details?: object };
    parentPort!.postMessage({ job, failure: { message, code, details: { ...details, cause: undefined } } });
  }
});
