/** read → quantize → write, overlapped, in the order of the layout; a few stripes are in flight, whatever the model's size. */
import {
  CflowError,
  type Dtype,
  elements,
  type ModelWriter,
  partTensors,
  type Region,
  type Stripe,
  stripeBytes,
  stripeId,
  type TensorSpec,
} from '@cflow/format';
import { orInterrupted, throwIfInterrupted } from './interrupt.js';
import { WorkerPool } from './pool.js';
import { type DelayedMoESource, type StripeStep, stripeSteps } from './sources/delayed-moe.js';
import type { StripeTask } from './worker.js';

export interface PipelineOptions {
  readonly dtype: Dtype;
  readonly scaleSearch: boolean;
  readonly zeroNonfinite: boolean;
  readonly threads: number;
  /** false: quantize in TypeScript even where there is an addon. Default true; the bytes are the same. */
  readonly native?: boolean;
  readonly signal?: AbortSignal;
  readonly onProgress?: (done: number, total: number) => void;
}

/** Stripes being quantized or waiting to be written, per thread: one in work, one ready behind it. */
const IN_FLIGHT_PER_THREAD = 2;

/** Writes every region of the writer's layout. Returns the SHA-256 of each of `paths`. */
export async function runPipeline(
  source: DelayedMoESource,
  writer: ModelWriter,
  paths: readonly string[],
  options: PipelineOptions,
): Promise<string[]> {
  const pool = new WorkerPool(options.threads);
  // Hashing reads each file once more, in order, beside the conversion; the page cache usually serves one of the two.
  const hashing = new WorkerPool(1);
  const sums = hashFiles(hashing, paths);
  sums.catch(() => undefined);
  try {
    const pieces = orderedPieces(source, writer, pool, options)[Symbol.asyncIterator]();
    let next = await pieces.next();
    let done = 0;
    for (const region of writer.layout.regions) {
      if (region.stream) {
        await writer.writeStream(
          region,
          (async function* () {
            while (!next.done && next.value.region === region) {
              yield next.value.bytes;
              next.value.release();
              next = await pieces.next();
            }
          })(),
        );
      } else await writer.writeFixed(region);
      done += region.length;
      options.onProgress?.(done, writer.layout.fileBytes);
    }
    return await orInterrupted(sums, options.signal);
  } finally {
    // A failure must not wait until a large source is hashed.
    await Promise.all([pool.close(), hashing.close()]);
  }
}

/** `pool` is one thread of its own, so that hashing neither delays a stripe nor waits for one. */
async function hashFiles(pool: WorkerPool, paths: readonly string[]): Promise<string[]> {
  const sums: string[] = [];
  for (const path of paths) {
    const result = await pool.run({ kind: 'hash', path });
    sums.push((result as { sha256: string }).sha256);
  }
  return sums;
}

interface Ready {
  readonly region: Region;
  readonly bytes: Uint8Array;
  /** To be called once the bytes have been written. */
  release(): void;
}

/** Buffers that go round between the threads and the writer: fresh pages cost about as much as what is done with them. */
class Buffers {
  readonly #free: ArrayBuffer[] = [];

  take(bytes: number): ArrayBuffer {
    const buffer = this.#free.pop();
    return buffer && buffer.byteLength >= bytes ? buffer : new ArrayBuffer(bytes);
  }

  give(buffer: ArrayBuffer): void {
    this.#free.push(buffer);
  }
}

/** Quantized pieces in layout order; goes ahead until IN_FLIGHT_PER_THREAD stripes per thread are under way. */
async function* orderedPieces(
  source: DelayedMoESource,
  writer: ModelWriter,
  pool: WorkerPool,
  options: PipelineOptions,
): AsyncGenerator<Ready> {
  const limit = options.threads * IN_FLIGHT_PER_THREAD;
  const queue: Promise<Ready>[] = [];
  const buffers = new Buffers();
  for (const step of stripeSteps(writer.layout)) {
    throwIfInterrupted(options.signal);
    // Only sources that compute their rows are waited for here; one read at a time, so that memory stays bounded.
    const weights = source.inFile(step) ?? (await source.read(step));
    const ready = readyPiece(step, weights, pool, buffers, options);
    // A later stripe may fail while an earlier one is awaited; the await below still sees the error.
    ready.catch(() => undefined);
    queue.push(ready);
    if (queue.length >= limit) yield await queue.shift()!;
  }
  for (const ready of queue) yield await ready;
}

async function readyPiece(
  { region, part, stripe }: StripeStep,
  weights: StripeTask['weights'],
  pool: WorkerPool,
  buffers: Buffers,
  options: PipelineOptions,
): Promise<Ready> {
  if (stripe) {
    const bytes = await quantize(pool, stripe, weights, buffers, options);
    return { region, bytes, release: () => buffers.give(bytes.buffer as ArrayBuffer) };
  }
  const bytes = plainBytes(partTensors(part)[0]!, weights as Float32Array, options);
  return { region, bytes, release: () => undefined };
}

async function quantize(
  pool: WorkerPool,
  stripe: Stripe,
  weights: StripeTask['weights'],
  buffers: Buffers,
  { dtype, scaleSearch, zeroNonfinite, native = true }: PipelineOptions,
): Promise<Uint8Array> {
  const { tensor, rows } = stripe;
  const cols = tensor.shape[1]!;
  const id = stripeId(stripe);
  const out = buffers.take(stripeBytes(dtype, rows, cols));
  const task = { dtype, weights, rows, cols, id, scaleSearch, zeroNonfinite, native, out };
  const run = pool.run({ kind: 'stripe', ...task });
  // What the dtype cannot hold is found in the worker, which knows no names.
  const result = await run.catch((cause: CflowError) => {
    throw new CflowError(cause.code, cause.message, { field: tensor.name, cause });
  });
  if ('bytes' in result) return result.bytes;
  if ('nonfinite' in result)
    return nonfinite(tensor, stripe.rowOffset * cols + result.nonfinite, result.value);
  throw new Error('a stripe task answers with bytes');
}

/** Norms, biases and routers stay f32. */
function plainBytes(
  tensor: TensorSpec,
  values: Float32Array,
  { zeroNonfinite }: PipelineOptions,
): Uint8Array {
  const bytes = new Uint8Array(4 * elements(tensor.shape));
  const view = new DataView(bytes.buffer);
  for (const [index, value] of values.entries()) {
    if (!Number.isFinite(value) && !zeroNonfinite) nonfinite(tensor, index, value);
    view.setFloat32(4 * index, Number.isFinite(value) ? value : 0, true);
  }
  return bytes;
}

function nonfinite(tensor: TensorSpec, index: number, value: number): never {
  const cols = tensor.shape[1];
  const place = cols ? `[${Math.floor(index / cols)}, ${index % cols}]` : `[${index}]`;
  throw new CflowError('NONFINITE_WEIGHT', `weight ${place} is ${value}`, {
    field: tensor.name,
    value,
    remedy: 'repair the checkpoint, or use --allow-nonfinite zero to store 0 instead',
  });
}
