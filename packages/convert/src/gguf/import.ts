/** GGUF → .cflow or .vflow. What has the dtype of the output keeps its scales and nibbles; the rest is quantized. */
import {
  CflowError,
  type Dtype,
  elements,
  type FormatVersion,
  f16ToF32,
  type ModelWriter,
  partStripes,
  type Stream,
  type Stripe,
  stripeBytes,
  stripeId,
  type TensorSpec,
} from '@cflow/format';
import { throwIfInterrupted } from '../pipeline/interrupt.js';
import { WorkerPool } from '../pipeline/pool.js';
import { blocksToStripe, wholeGroups } from './blocks.js';
import { recoverBlocks } from './recover.js';
import { DECODERS, dtypeOf, type GgufModel, readPlain, readRows } from './source.js';

/** How a GGUF is read into tiles. */
export interface ImportOptions {
  readonly dtype: Dtype;
  readonly scaleSearch: boolean;
  readonly zeroNonfinite: boolean;
  readonly threads: number;
  readonly signal?: AbortSignal;
  /** Weights that were not finite and were stored as 0. */
  readonly onZeroed?: (count: number) => void;
  /** Bytes of the output done, and all of them. */
  readonly onProgress?: (done: number, total: number) => void;
}

/** Stripes under way per thread: one in work, one ready behind it. */
const IN_FLIGHT_PER_THREAD = 2;

interface Run {
  readonly model: GgufModel;
  readonly pool: WorkerPool;
  readonly options: ImportOptions;
  readonly version: FormatVersion;
}

/** Writes every region of the writer's layout. Returns the SHA-256 of the source. Memory: a few stripes. */
export async function importGguf(
  model: GgufModel,
  path: string,
  writer: ModelWriter,
  options: ImportOptions,
): Promise<string> {
  const pool = new WorkerPool(options.threads, 'worker.js');
  const hashing = new WorkerPool(1, 'hash-worker.js');
  const hash = hashing.run({ kind: 'hash', path });
  hash.catch(() => undefined);
  try {
    let done = 0;
    for (const region of writer.layout.regions) {
      throwIfInterrupted(options.signal);
      if (region.stream)
        await writer.writeStream(
          region,
          streamBytes({ model, pool, options, version: writer.layout.version }, region.stream),
        );
      else await writer.writeFixed(region);
      done += region.length;
      options.onProgress?.(done, writer.layout.fileBytes);
    }
    return ((await hash) as { sha256: string }).sha256;
  } finally {
    await Promise.all([pool.close(), hashing.close()]);
  }
}

/** The bytes of a stream in order; a few stripes are under way at a time. */
async function* streamBytes(run: Run, stream: Stream): AsyncGenerator<Uint8Array> {
  const limit = run.options.threads * IN_FLIGHT_PER_THREAD;
  const queue: Promise<Uint8Array>[] = [];
  for (const piece of pieces(run, stream)) {
    throwIfInterrupted(run.options.signal);
    const bytes = piece();
    bytes.catch(() => undefined);
    queue.push(bytes);
    if (queue.length >= limit) yield await queue.shift()!;
  }
  for (const bytes of queue) yield await bytes;
}

function* pieces(run: Run, { parts }: Stream): Generator<() => Promise<Uint8Array>> {
  for (const part of parts) {
    if (part.kind === 'plain') yield () => plainBytes(run, part.tensor);
    else for (const stripe of partStripes(part)) yield () => stripeOf(run, stripe);
  }
}

async function plainBytes({ model, options }: Run, tensor: TensorSpec): Promise<Uint8Array> {
  const values = await readPlain(model, tensor);
  const bytes = new Uint8Array(4 * elements(tensor.shape));
  const view = new DataView(bytes.buffer);
  for (const [index, value] of values.entries()) {
    if (!Number.isFinite(value)) {
      if (!options.zeroNonfinite) nonfinite(model, tensor, index, value);
      options.onZeroed?.(1);
    }
    view.setFloat32(4 * index, Number.isFinite(value) ? value : 0, true);
  }
  return bytes;
}

async function stripeOf({ model, pool, options, version }: Run, stripe: Stripe): Promise<Uint8Array> {
  const { tensor, rowOffset, rows } = stripe;
  const { dtype, scaleSearch, zeroNonfinite } = options;
  const place = model.tensors.get(tensor.name)!;
  const { cols } = place;
  const blocks = await readRows(model.source, place, rowOffset, rows, tensor.name);
  const id = stripeId(stripe, version);
  if (dtypeOf(place.type) === dtype) {
    requireFinite(model, stripe, dtype, blocks);
    return blocksToStripe(dtype, blocks, rows, cols, id);
  }
  const weights = DECODERS[place.type](blocks, rows, cols);
  const recovered = wholeGroups(dtype, cols) ? undefined : recoverBlocks(dtype, weights, rows, cols);
  if (recovered) return blocksToStripe(dtype, recovered, rows, cols, id);
  const work = { name: tensor.name, weights, rows, cols, id };
  const out = new ArrayBuffer(stripeBytes(dtype, rows, cols));
  const task = {
    kind: 'stripes',
    dtype,
    scaleSearch,
    zeroNonfinite,
    native: true,
    stripes: [work],
    out,
  } as const;
  const result = await pool.run(task);
  if ('nonfinite' in result) {
    const { index, value } = result.nonfinite;
    return nonfinite(model, tensor, rowOffset * cols + index, value);
  }
  if (!('bytes' in result)) throw new Error('a task of stripes answers with bytes');
  options.onZeroed?.(result.zeroed);
  return result.bytes;
}

/** What is copied is looked at, too: NaN and infinite weights, and scales of all ones in the exponent. */
function requireFinite(
  model: GgufModel,
  { tensor, rowOffset }: Stripe,
  dtype: Dtype,
  blocks: Uint8Array,
): void {
  const words = EXPONENTS[dtype];
  const cols = tensor.shape[1]!;
  const view = new DataView(blocks.buffer, blocks.byteOffset, blocks.byteLength);
  for (let at = words.at, index = 0; at + words.bytes <= blocks.length; at += words.stride, index++) {
    const bits = words.bytes === 4 ? view.getUint32(at, true) : view.getUint16(at, true);
    if ((bits & words.mask) !== words.mask) continue;
    const value = words.bytes === 4 ? f32FromBits(bits) : f16ToF32(bits);
    nonfinite(model, tensor, rowOffset * cols + index * words.weights, value);
  }
}

/** Where the floating-point numbers of blocks are, and the exponent of those that are not finite. */
const EXPONENTS = {
  q4_0: { at: 0, stride: 18, bytes: 2, mask: 0x7c00, weights: 32 },
  q8_0: { at: 0, stride: 34, bytes: 2, mask: 0x7c00, weights: 32 },
  f16: { at: 0, stride: 2, bytes: 2, mask: 0x7c00, weights: 1 },
  f32: { at: 0, stride: 4, bytes: 4, mask: 0x7f800000, weights: 1 },
} as const satisfies Record<Dtype, object>;

const word = new DataView(new ArrayBuffer(4));

function f32FromBits(bits: number): number {
  word.setUint32(0, bits);
  return word.getFloat32(0);
}

function nonfinite(
  { source, tensors }: GgufModel,
  { name, shape }: TensorSpec,
  index: number,
  value: number,
): never {
  const cols = shape[1];
  const place = cols ? `[${Math.floor(index / cols)}, ${index % cols}]` : `[${index}]`;
  throw new CflowError('NONFINITE_WEIGHT', `weight ${place} is ${value}`, {
    file: source.name,
    field: tensors.get(name)!.name,
    value,
    remedy: 'repair the file, or convert it to another dtype with --allow-nonfinite zero',
  });
}
