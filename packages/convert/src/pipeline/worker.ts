/** The thread that quantizes: where rows lie in, bytes of stripes out. */
import {
  asCflowError,
  CflowError,
  type Dtype,
  quantizeStripe,
  type StripeId,
  stripeBytes,
} from '@cflow/format/stripes';
import { NATIVE_INPUTS, nativeQuantizer } from '@cflow/runtime-native/quantize';
import type { FileRows } from '../sources/checkpoint.js';
import { DECODERS, type SafetensorsDtype } from '../sources/safetensors-dtype.js';
import { readFileRows } from './file-rows.js';
import { serveTasks } from './serve.js';

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
/** A weight that is NaN or infinite: which stripe of the task, its index there, and its value. */
export interface Nonfinite {
  readonly stripe: number;
  readonly index: number;
  readonly value: number;
}
/** `zeroed`: weights that were not finite and were stored as 0. */
export type StripeResult = { bytes: Uint8Array; zeroed: number } | { nonfinite: Nonfinite };

/** Index of the first NaN or Inf, −1 if there is none. */
export function findNonfinite(values: Float32Array): number {
  return values.findIndex((value) => !Number.isFinite(value));
}

/** Stores 0 in the place of NaN and Inf. Returns how many there were. */
export function zeroNonfinite(values: Float32Array): number {
  let zeroed = 0;
  for (let i = 0; i < values.length; i++) {
    if (Number.isFinite(values[i]!)) continue;
    values[i] = 0;
    zeroed++;
  }
  return zeroed;
}

interface RawWeights {
  readonly bytes: Uint8Array;
  readonly dtype: SafetensorsDtype;
}

function rawWeights(weights: FileRows | Float32Array): RawWeights {
  if (weights instanceof Float32Array) return plainValues(weights);
  return { bytes: readFileRows(weights), dtype: weights.dtype };
}

function plainValues({ buffer, byteOffset, byteLength }: Float32Array): RawWeights {
  return { bytes: new Uint8Array(buffer, byteOffset, byteLength), dtype: 'F32' };
}

function runStripes(task: StripeTask): StripeResult {
  let at = 0;
  let zeroed = 0;
  for (const [stripe, work] of task.stripes.entries()) {
    const bytes = new Uint8Array(task.out, at, stripeBytes(task.dtype, work.rows, work.cols));
    try {
      const done = runStripe(task, work, bytes);
      if (typeof done !== 'number') return { nonfinite: { stripe, ...done } };
      zeroed += done;
    } catch (cause) {
      const { code, message } = asCflowError(cause);
      throw new CflowError(code, message, { field: work.name, cause });
    }
    at += bytes.length;
  }
  return { bytes: new Uint8Array(task.out, 0, at), zeroed };
}

/**
 * Writes one stripe and returns how many weights were replaced by 0, or its first weight that is not finite. What the
 * kernels do not read or refuse goes through the definition, which also says what is wrong with a weight.
 */
function runStripe(
  task: StripeTask,
  work: StripeWork,
  out: Uint8Array,
): number | Pick<Nonfinite, 'index' | 'value'> {
  const raw = rawWeights(work.weights);
  // Weights that must be counted go through the definition, too; it is a rare repair.
  if (task.native && !task.zeroNonfinite && quantizeNatively(task, work, raw, out)) return 0;
  const values = DECODERS[raw.dtype]!(raw.bytes);
  const zeroed = task.zeroNonfinite ? zeroNonfinite(values) : 0;
  if (task.native && task.zeroNonfinite && quantizeNatively(task, work, plainValues(values), out))
    return zeroed;
  const index = findNonfinite(values);
  if (index >= 0) return { index, value: values[index]! };
  out.set(quantizeStripe(task.dtype, values, work.rows, work.cols, work.id, task));
  return zeroed;
}

const native = nativeQuantizer();

function quantizeNatively(task: StripeTask, work: StripeWork, raw: RawWeights, out: Uint8Array): boolean {
  const input = NATIVE_INPUTS.find((name) => name === raw.dtype);
  const { dtype, scaleSearch, zeroNonfinite } = task;
  const { rows, cols, id } = work;
  const stripe = { rows, cols, id, dtype, scaleSearch, zeroNonfinite, weights: raw.bytes };
  return native !== undefined && input !== undefined && native({ ...stripe, input }, out);
}

serveTasks<StripeTask>(runStripes);
