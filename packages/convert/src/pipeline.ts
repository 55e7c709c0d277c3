/** read → quantize → write, overlapped, in the order of the layout; a few stripes are in flight, whatever the model's size. */
import {
  CflowError,
  type Dtype,
  elements,
  type ModelWriter,
  partTensors,
  type Region,
  type Stripe,
  stripeId,
  type TensorSpec,
} from '@cflow/format';
import { orInterrupted, throwIfInterrupted } from './interrupt.js';
import { WorkerPool } from './pool.js';
import type { DelayedMoESource } from './sources/delayed-moe.js';

export interface PipelineOptions {
  readonly dtype: Dtype;
  readonly scaleSearch: boolean;
  readonly zeroNonfinite: boolean;
  readonly threads: number;
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
}

/** Quantized pieces in layout order; reads ahead until IN_FLIGHT_PER_THREAD stripes per thread are under way. */
async function* orderedPieces(
  source: DelayedMoESource,
  writer: ModelWriter,
  pool: WorkerPool,
  options: PipelineOptions,
): AsyncGenerator<Ready> {
  const limit = options.threads * IN_FLIGHT_PER_THREAD;
  const queue: Promise<Ready>[] = [];
  for await (const { region, part, stripe, rows } of source.stripes(writer.layout)) {
    throwIfInterrupted(options.signal);
    const work = stripe
      ? quantize(pool, stripe, rows, options)
      : Promise.resolve(plainBytes(partTensors(part)[0]!, rows, options));
    const ready = work.then((bytes) => ({ region, bytes }));
    // A later stripe may fail while an earlier one is awaited; the await below still sees the error.
    ready.catch(() => undefined);
    queue.push(ready);
    if (queue.length >= limit) yield await queue.shift()!;
  }
  for (const ready of queue) yield await ready;
}

async function quantize(
  pool: WorkerPool,
  stripe: Stripe,
  values: Float32Array,
  { dtype, scaleSearch, zeroNonfinite }: PipelineOptions,
): Promise<Uint8Array> {
  const { tensor } = stripe;
  const cols = tensor.shape[1]!;
  const run = pool.run({
    kind: 'stripe',
    dtype,
    values,
    rows: stripe.rows,
    cols,
    id: stripeId(stripe),
    scaleSearch,
    zeroNonfinite,
  });
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
