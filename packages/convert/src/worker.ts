/** The thread that quantizes: where rows lie in, bytes of stripes out. Also hashes source files. */
import { createHash } from 'node:crypto';
import { closeSync, openSync, readSync } from 'node:fs';
import { parentPort } from 'node:worker_threads';
import {
  asCflowError,
  CflowError,
  type Dtype,
  quantizeStripe,
  type StripeId,
  stripeBytes,
} from '@cflow/format';
import { NATIVE_INPUTS, nativeQuantizer } from '@cflow/runtime-native';
import { readFileRows } from './file-rows.js';
import type { FileRows } from './sources/checkpoint.js';
import { DECODERS, type SafetensorsDtype } from './sources/safetensors-dtype.js';

export interface StripeWork {
  /** Of the tensor, for errors. */
  readonly name: string;
  /** [rows, cols] row-major: where the thread reads them, or values that the source had to compute. */
  readonly weights: FileRows | Float32Array;
  readonly rows: number;
  readonly cols: number;
  readonly id: StripeId;
}
export interface StripeTask {
  readonly kind: 'stripes';
  readonly dtype: Dtype;
  readonly scaleSearch: boolean;
  readonly zeroNonfinite: boolean;
  /** false: by the quantizer in TypeScript, whose bytes are the same. */
  readonly native: boolean;
  /** Neighbours in the file. */
  readonly stripes: readonly StripeWork[];
  /** Takes the result, which begins at its start; at least as many bytes. */
  readonly out: ArrayBuffer;
}
export interface HashTask {
  readonly kind: 'hash';
  readonly path: string;
}
export type Task = StripeTask | HashTask;
/** A weight that is NaN or infinite: which stripe of the task, its index there, and its value. */
export interface Nonfinite {
  readonly stripe: number;
  readonly index: number;
  readonly value: number;
}
export type TaskResult = { bytes: Uint8Array } | { sha256: string } | { nonfinite: Nonfinite };

/** Index of the first NaN or Inf, −1 if there is none; with `zero` they are replaced instead. */
export function findNonfinite(values: Float32Array, zero: boolean): number {
  for (let i = 0; i < values.length; i++) {
    if (Number.isFinite(values[i]!)) continue;
    if (!zero) return i;
    values[i] = 0;
  }
  return -1;
}

interface RawWeights {
  readonly bytes: Uint8Array;
  readonly dtype: SafetensorsDtype;
}

function rawWeights(weights: FileRows | Float32Array): RawWeights {
  if (!(weights instanceof Float32Array)) return { bytes: readFileRows(weights), dtype: weights.dtype };
  return { bytes: new Uint8Array(weights.buffer, weights.byteOffset, weights.byteLength), dtype: 'F32' };
}

function runStripes(task: StripeTask): TaskResult {
  let at = 0;
  for (const [stripe, work] of task.stripes.entries()) {
    const bytes = new Uint8Array(task.out, at, stripeBytes(task.dtype, work.rows, work.cols));
    try {
      const bad = runStripe(task, work, bytes);
      if (bad) return { nonfinite: { stripe, ...bad } };
    } catch (cause) {
      const { code, message } = asCflowError(cause);
      throw new CflowError(code, message, { field: work.name, cause });
    }
    at += bytes.length;
  }
  return { bytes: new Uint8Array(task.out, 0, at) };
}

/**
 * Writes one stripe, or returns its first weight that is not finite. What the kernels do not read or refuse goes through
 * the definition, which also says what is wrong with a weight.
 */
function runStripe(
  task: StripeTask,
  work: StripeWork,
  out: Uint8Array,
): Pick<Nonfinite, 'index' | 'value'> | undefined {
  const raw = rawWeights(work.weights);
  if (task.native && quantizeNatively(task, work, raw, out)) return undefined;
  const values = DECODERS[raw.dtype]!(raw.bytes);
  const index = findNonfinite(values, task.zeroNonfinite);
  if (index >= 0) return { index, value: values[index]! };
  out.set(quantizeStripe(task.dtype, values, work.rows, work.cols, work.id, task));
  return undefined;
}

const native = nativeQuantizer();

function quantizeNatively(task: StripeTask, work: StripeWork, raw: RawWeights, out: Uint8Array): boolean {
  const input = NATIVE_INPUTS.find((name) => name === raw.dtype);
  const { dtype, scaleSearch, zeroNonfinite } = task;
  const { rows, cols, id } = work;
  const stripe = { rows, cols, id, dtype, scaleSearch, zeroNonfinite, weights: raw.bytes };
  return native !== undefined && input !== undefined && native({ ...stripe, input }, out);
}

/** Small enough to stay in a cache between reading and hashing. */
const HASH_BYTES = 256 * 1024;

function runHash({ path }: HashTask): TaskResult {
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

parentPort?.on('message', ({ job, task }: { job: number; task: Task }) => {
  try {
    const result = task.kind === 'stripes' ? runStripes(task) : runHash(task);
    const transfer = 'bytes' in result ? [result.bytes.buffer as ArrayBuffer] : [];
    parentPort!.postMessage({ job, result }, transfer);
  } catch (error) {
    const { message, code, details } = error as Error & { code?: string; details?: object };
    parentPort!.postMessage({ job, failure: { message, code, details: { ...details, cause: undefined } } });
  }
});
