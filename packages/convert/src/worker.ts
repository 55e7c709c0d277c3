/** The thread that quantizes: where rows lie in, bytes of a stripe out. Also hashes source files. */
import { createHash } from 'node:crypto';
import { closeSync, openSync, readSync } from 'node:fs';
import { parentPort } from 'node:worker_threads';
import { type Dtype, quantizeStripe, type StripeId, stripeBytes } from '@cflow/format';
import { NATIVE_INPUTS, type NativeInput, nativeQuantizer } from '@cflow/runtime-native';
import { readFileRows } from './file-rows.js';
import type { FileRows } from './sources/checkpoint.js';
import { DECODERS, type SafetensorsDtype } from './sources/safetensors-dtype.js';

export interface StripeTask {
  readonly kind: 'stripe';
  readonly dtype: Dtype;
  /** [rows, cols] row-major: where the thread reads them, or values that the source had to compute. */
  readonly weights: FileRows | Float32Array;
  readonly rows: number;
  readonly cols: number;
  readonly id: StripeId;
  readonly scaleSearch: boolean;
  readonly zeroNonfinite: boolean;
  /** false: by the quantizer in TypeScript, whose bytes are the same. */
  readonly native: boolean;
  /** Takes the result, which begins at its start; at least as many bytes. */
  readonly out: ArrayBuffer;
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

interface RawWeights {
  readonly bytes: Uint8Array;
  readonly dtype: SafetensorsDtype;
}

function rawWeights(weights: FileRows | Float32Array): RawWeights {
  if (!(weights instanceof Float32Array)) return { bytes: readFileRows(weights), dtype: weights.dtype };
  return { bytes: new Uint8Array(weights.buffer, weights.byteOffset, weights.byteLength), dtype: 'F32' };
}

/** What the kernels do not read or refuse goes through the definition, which also says what is wrong with a weight. */
function runStripe(task: StripeTask): TaskResult {
  const { dtype, rows, cols, id, scaleSearch, zeroNonfinite } = task;
  const raw = rawWeights(task.weights);
  const bytes = new Uint8Array(task.out, 0, stripeBytes(dtype, rows, cols));
  if (task.native && quantizeNatively(task, raw, bytes)) return { bytes };
  const values = DECODERS[raw.dtype]!(raw.bytes);
  const bad = findNonfinite(values, zeroNonfinite);
  if (bad >= 0) return { nonfinite: bad, value: values[bad]! };
  bytes.set(quantizeStripe(dtype, values, rows, cols, id, { scaleSearch }));
  return { bytes };
}

const native = nativeQuantizer();

function quantizeNatively(task: StripeTask, raw: RawWeights, out: Uint8Array): boolean {
  const input = NATIVE_INPUTS.find((name) => name === raw.dtype) satisfies NativeInput | undefined;
  return native !== undefined && input !== undefined && native({ ...task, weights: raw.bytes, input }, out);
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
    const result = task.kind === 'stripe' ? runStripe(task) : runHash(task);
    const transfer = 'bytes' in result ? [result.bytes.buffer as ArrayBuffer] : [];
    parentPort!.postMessage({ job, result }, transfer);
  } catch (error) {
    const { message, code, details } = error as Error & { code?: string; details?: object };
    parentPort!.postMessage({ job, failure: { message, code, details: { ...details, cause: undefined } } });
  }
});
