/** read → quantize → write, overlapped, in the order of the layout; a few stripes are in flight, whatever the model's size. */
import {
  CflowError,
  type Dtype,
  elements,
  type FormatVersion,
  type Layout,
  type ModelWriter,
  partTensors,
  type Region,
  type Stripe,
  stripeBytes,
  stripeId,
  type TensorSpec,
} from '@cflow/format';
import type { FileRows } from '../sources/checkpoint.js';
import { type DelayedMoESource, type StripeStep, stripeSteps } from './delayed-moe.js';
import { orInterrupted, throwIfInterrupted } from './interrupt.js';
import { WorkerPool } from './pool.js';
import type { StripeWork } from './worker.js';

export interface PipelineOptions {
  readonly dtype: Dtype;
  readonly scaleSearch: boolean;
  readonly zeroNonfinite: boolean;
  readonly threads: number;
  /** false: quantize in TypeScript even where there is an addon. Default true; the bytes are the same. */
  readonly native?: boolean;
  /** What an earlier conversion wrote: read back instead of made. */
  readonly resume?: Written | undefined;
  /** Steps whose weights no thread can read in a file and that are read at the same time. Default 1. */
  readonly readAhead?: number | undefined;
  readonly signal?: AbortSignal;
  /** Weights that were not finite and were stored as 0. */
  readonly onZeroed?: (count: number) => void;
  readonly onProgress?: (done: number, total: number) => void;
}

/** The beginning of an output. */
export interface Written {
  /** Everything before this position is there; it lies between two steps. */
  readonly resumedAt: number;
  readBack(offset: number, length: number): Promise<Uint8Array>;
}

const NOTHING: Written = { resumedAt: 0, readBack: async () => new Uint8Array(0) };
const READ_BACK_BYTES = 8 * 1024 * 1024;

/** Pieces being quantized or waiting to be written, per thread: one in work, one ready behind it. */
const IN_FLIGHT_PER_THREAD = 2;

/** Weights from which on a piece takes no further stripe: few messages and writes, yet little memory. */
const PIECE_WEIGHTS = 2 ** 21;

/** Writes every region of the writer's layout. Returns the SHA-256 of each of `paths`. */
export async function runPipeline(
  source: DelayedMoESource,
  writer: ModelWriter,
  paths: readonly string[],
  options: PipelineOptions,
): Promise<string[]> {
  const pool = new WorkerPool(options.threads, 'worker.js');
  // Hashing reads each file once more, in order, beside the conversion; the page cache usually serves one of the two.
  // A file is one chain of blocks, as slow as one core: several files go side by side.
  const hashing = new WorkerPool(Math.min(options.threads, paths.length), 'hash-worker.js');
  const sums = hashFiles(hashing, paths);
  sums.catch(() => undefined);
  const { resume = NOTHING } = options;
  try {
    const quantized = orderedPieces(source, writer, pool, options)[Symbol.asyncIterator]();
    let next = await quantized.next();
    let done = 0;
    for (const region of writer.layout.regions) {
      if (region.stream) {
        await writer.writeStream(
          region,
          (async function* () {
            yield* whatIsThere(resume, region, options.signal);
            while (!next.done && next.value.region === region) {
              yield next.value.bytes;
              next.value.release();
              next = await quantized.next();
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

/** The bytes of a region that are there already. */
async function* whatIsThere(
  resume: Written,
  { offset, length }: Region,
  signal: AbortSignal | undefined,
): AsyncGenerator<Uint8Array> {
  const end = Math.min(resume.resumedAt, offset + length);
  for (let at = offset; at < end; at += READ_BACK_BYTES) {
    throwIfInterrupted(signal);
    yield resume.readBack(at, Math.min(READ_BACK_BYTES, end - at));
  }
}

/** `pool` has threads of its own, so that hashing neither delays a stripe nor waits for one. */
function hashFiles(pool: WorkerPool, paths: readonly string[]): Promise<string[]> {
  return Promise.all(
    paths.map(async (path) => {
      const result = await pool.run({ kind: 'hash', path });
      return (result as { sha256: string }).sha256;
    }),
  );
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

/** A step, and where its rows lie if a thread can read them there. */
interface Part {
  readonly step: StripeStep;
  readonly rows: FileRows | undefined;
}

/** The steps of the layout in pieces: neighbouring stripes that threads can read, and every other step by itself. */
function* pieces(
  source: DelayedMoESource,
  { layout, dtype, from }: { layout: Layout; dtype: Dtype; from: number },
): Generator<[Part, ...Part[]]> {
  let piece: Part[] = [];
  let weights = 0;
  for (const step of stepsFrom(layout, dtype, from)) {
    const rows = source.inFile(step);
    const last = piece.at(-1);
    if (last && !(last.rows && rows && last.step.region === step.region && weights < PIECE_WEIGHTS)) {
      yield piece as [Part, ...Part[]];
      piece = [];
      weights = 0;
    }
    piece.push({ step, rows });
    if (step.stripe) weights += step.stripe.rows * step.stripe.tensor.shape[1]!;
  }
  if (piece.length > 0) yield piece as [Part, ...Part[]];
}

/** The steps whose bytes begin at `from` or behind it. */
function* stepsFrom(layout: Layout, dtype: Dtype, from: number): Generator<StripeStep> {
  let at = 0;
  let region: Region | undefined;
  for (const step of stripeSteps(layout)) {
    if (step.region !== region) at = step.region.offset;
    region = step.region;
    if (at >= from) yield step;
    at += stepBytes(step, dtype);
  }
}

function stepBytes({ part, stripe }: StripeStep, dtype: Dtype): number {
  if (stripe) return stripeBytes(dtype, stripe.rows, stripe.tensor.shape[1]!);
  return 4 * elements(partTensors(part)[0]!.shape);
}

/** Pieces with the weights that no thread can read, at most `ahead` pieces before they are asked for. */
async function* withValues(
  source: DelayedMoESource,
  all: Iterable<[Part, ...Part[]]>,
  ahead: number,
): AsyncGenerator<{ piece: [Part, ...Part[]]; values: Float32Array | undefined }> {
  const queue: { piece: [Part, ...Part[]]; reading: Promise<Float32Array | undefined> }[] = [];
  for (const piece of all) {
    const [{ step, rows }] = piece;
    const reading = rows ? Promise.resolve(undefined) : source.read(step);
    reading.catch(() => undefined);
    queue.push({ piece, reading });
    if (queue.length < ahead) continue;
    const next = queue.shift()!;
    yield { piece: next.piece, values: await next.reading };
  }
  for (const { piece, reading } of queue) yield { piece, values: await reading };
}

/** Quantized pieces in layout order; goes ahead until IN_FLIGHT_PER_THREAD pieces per thread are under way. */
async function* orderedPieces(
  source: DelayedMoESource,
  writer: ModelWriter,
  pool: WorkerPool,
  options: PipelineOptions,
): AsyncGenerator<Ready> {
  const limit = options.threads * IN_FLIGHT_PER_THREAD;
  const queue: Promise<Ready>[] = [];
  const buffers = new Buffers();
  const { resume = NOTHING, readAhead = 1, dtype } = options;
  const { version } = writer.layout;
  const all = pieces(source, { layout: writer.layout, dtype, from: resume.resumedAt });
  // Rows that no thread can read are waited for: few reads at a time, so that memory stays bounded.
  for await (const { piece, values } of withValues(source, interruptible(all, options.signal), readAhead)) {
    const [{ step }] = piece;
    const ready = step.stripe
      ? quantize(source, pool, piece, values, buffers, { ...options, version })
      : plainPiece(source, step, values!, options);
    // A later piece may fail while an earlier one is awaited; the await below still sees the error.
    ready.catch(() => undefined);
    queue.push(ready);
    if (queue.length >= limit) yield await queue.shift()!;
  }
  for (const ready of queue) yield await ready;
}

function* interruptible<T>(items: Iterable<T>, signal: AbortSignal | undefined): Generator<T> {
  for (const item of items) {
    throwIfInterrupted(signal);
    yield item;
  }
}

async function plainPiece(
  source: DelayedMoESource,
  { region, part }: StripeStep,
  values: Float32Array,
  options: PipelineOptions,
): Promise<Ready> {
  return {
    region,
    bytes: plainBytes(source, partTensors(part)[0]!, values, options),
    release: () => undefined,
  };
}

/** `values` are those of the only stripe if it is not in a file. */
async function quantize(
  source: DelayedMoESource,
  pool: WorkerPool,
  piece: readonly [Part, ...Part[]],
  values: Float32Array | undefined,
  buffers: Buffers,
  {
    dtype,
    scaleSearch,
    zeroNonfinite,
    native = true,
    onZeroed,
    version,
  }: PipelineOptions & Pick<Layout, 'version'>,
): Promise<Ready> {
  const stripes = piece.map(({ step, rows }) => stripeWork(step.stripe!, version, (rows ?? values)!));
  const bytes = stripes.reduce((sum, { rows, cols }) => sum + stripeBytes(dtype, rows, cols), 0);
  const out = buffers.take(bytes);
  const result = await pool.run({
    kind: 'stripes',
    ...{ dtype, scaleSearch, zeroNonfinite, native, stripes, out },
  });
  if ('nonfinite' in result) {
    const { stripe, index, value } = result.nonfinite;
    const { tensor, rowOffset } = piece[stripe]!.step.stripe!;
    nonfinite(source, tensor, rowOffset * tensor.shape[1]! + index, value);
  }
  if (!('bytes' in result)) throw new Error('a task of stripes answers with bytes');
  onZeroed?.(result.zeroed);
  const { region } = piece[0].step;
  return { region, bytes: result.bytes, release: () => buffers.give(result.bytes.buffer as ArrayBuffer) };
}

function stripeWork(stripe: Stripe, version: FormatVersion, weights: StripeWork['weights']): StripeWork {
  const { tensor, rows } = stripe;
  return { name: tensor.name, weights, rows, cols: tensor.shape[1]!, id: stripeId(stripe, version) };
}

/** Norms, biases and routers stay f32. */
function plainBytes(
  source: DelayedMoESource,
  tensor: TensorSpec,
  values: Float32Array,
  { zeroNonfinite, onZeroed }: PipelineOptions,
): Uint8Array {
  const bytes = new Uint8Array(4 * elements(tensor.shape));
  const view = new DataView(bytes.buffer);
  for (const [index, value] of values.entries()) {
    if (!Number.isFinite(value)) {
      if (!zeroNonfinite) nonfinite(source, tensor, index, value);
      onZeroed?.(1);
    }
    view.setFloat32(4 * index, Number.isFinite(value) ? value : 0, true);
  }
  return bytes;
}

function nonfinite(source: DelayedMoESource, tensor: TensorSpec, index: number, value: number): never {
  const cols = tensor.shape[1];
  const place = cols ? `[${Math.floor(index / cols)}, ${index % cols}]` : `[${index}]`;
  throw new CflowError('NONFINITE_WEIGHT', `weight ${place} is ${value}`, {
    ...(source.checkpoint.storedAt?.(tensor.name) ?? { field: tensor.name }),
    value,
    remedy: 'repair the checkpoint, or use --allow-nonfinite zero to store 0 instead',
  });
}
