/** Writes synthetic checkpoints in the layout of Hugging Face, in bounded memory. */
import { randomBytes } from 'node:crypto';
import { rmSync } from 'node:fs';
import { type FileHandle, mkdir, open, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { CflowError, f32ToF16, parameterCount } from '@cflow/format';
import { randomGenerator } from '@cflow/runtime-native/internal/sampling/random.js';
import { hold, throwIfInterrupted } from '../runner/resources.js';
import { type Geometry, geometryOf, type StoredTensor } from './geometry.js';

export interface SynthOptions {
  readonly directory: string;
  readonly geometry: string;
  /** Approximate bytes of weights; determines the number of layers. */
  readonly bytes?: number;
  readonly shards: number;
  readonly dtype: StorageName;
  readonly seed: number;
}

export interface SynthResult {
  readonly directory: string;
  readonly parameters: number;
  readonly layers: number;
  readonly shards: number;
  /** Bytes of all weights, without headers. */
  readonly bytes: number;
  readonly seconds: number;
}

/**
 * Writes the checkpoint to a temporary directory, then renames it.
 * @throws CflowError USAGE (geometry), OUTPUT_EXISTS, WRITE_FAILED
 */
export async function synthesize(options: SynthOptions): Promise<SynthResult> {
  const started = performance.now();
  const directory = resolve(options.directory);
  const geometry = geometryOf(options.geometry, options.bytes, STORAGES[options.dtype].bytes);
  if (await stat(directory).catch(() => undefined)) {
    throw new CflowError('OUTPUT_EXISTS', 'exists', { file: directory, remedy: 'choose another directory' });
  }
  const temporary = join(
    dirname(directory),
    `.${basename(directory)}.${randomBytes(6).toString('hex')}.partial`,
  );
  const release = hold(() => rmSync(temporary, { recursive: true, force: true }));
  try {
    await mkdir(temporary);
    const bytes = await writeCheckpoint(temporary, geometry, options);
    await rename(temporary, directory);
    return {
      directory,
      parameters: parameterCount(geometry.config),
      layers: geometry.config.layers.length,
      shards: options.shards,
      bytes,
      seconds: (performance.now() - started) / 1000,
    };
  } catch (cause) {
    await rm(temporary, { recursive: true, force: true });
    if (cause instanceof CflowError) throw cause;
    const code = (cause as NodeJS.ErrnoException).code ?? String(cause);
    throw new CflowError('WRITE_FAILED', `cannot write: ${code}`, { file: directory, cause });
  } finally {
    release();
  }
}

async function writeCheckpoint(
  directory: string,
  geometry: Geometry,
  options: SynthOptions,
): Promise<number> {
  const { torch, bytes: bytesEach } = STORAGES[options.dtype];
  const config = { ...geometry.configJson, ...(isLlama(geometry) && { torch_dtype: torch }) };
  await writeFile(join(directory, 'config.json'), `${JSON.stringify(config, undefined, 2)}\n`);
  const shards = splitTensors(geometry.tensors, options.shards);
  const weights = new WeightStream(options.dtype, options.seed);
  const weightMap: Record<string, string> = {};
  for (const [index, tensors] of shards.entries()) {
    const name = shardName(index, shards.length);
    for (const tensor of tensors) weightMap[tensor.name] = name;
    await writeShard(join(directory, name), tensors, options.dtype, weights);
  }
  const total_size = bytesEach * geometry.tensors.reduce((sum, { count }) => sum + count, 0);
  if (shards.length > 1) {
    const index = { metadata: { total_size }, weight_map: weightMap };
    await writeFile(join(directory, 'model.safetensors.index.json'), `${JSON.stringify(index)}\n`);
  }
  return total_size;
}

/** cflow's own configuration rejects unknown fields. */
function isLlama({ configJson }: Geometry): boolean {
  return configJson.model_type !== 'cflow';
}

function shardName(index: number, count: number): string {
  const five = (n: number) => String(n).padStart(5, '0');
  return count === 1 ? 'model.safetensors' : `model-${five(index + 1)}-of-${five(count)}.safetensors`;
}

/**
 * Splits the tensors, in order, into non-empty shards of similar size.
 * @throws CflowError USAGE for more shards than tensors
 */
export function splitTensors(tensors: readonly StoredTensor[], shards: number): StoredTensor[][] {
  if (shards > tensors.length) {
    throw new CflowError('USAGE', `${shards} shards for ${tensors.length} tensors`, {
      field: 'shards',
      remedy: 'use fewer shards',
    });
  }
  const total = tensors.reduce((sum, { count }) => sum + count, 0);
  const result: StoredTensor[][] = [[]];
  let done = 0;
  for (const [index, tensor] of tensors.entries()) {
    const full = done >= (total * result.length) / shards;
    const needed = shards - result.length >= tensors.length - index;
    if (result.length < shards && result.at(-1)!.length && (full || needed)) result.push([]);
    result.at(-1)!.push(tensor);
    done += tensor.count;
  }
  return result;
}

async function writeShard(
  path: string,
  tensors: readonly StoredTensor[],
  dtype: StorageName,
  weights: WeightStream,
): Promise<void> {
  const handle = await open(path, 'wx');
  try {
    await writeAll(handle, safetensorsHead(tensors, dtype));
    for (const { name, count } of tensors) {
      for (const piece of weights.tensor(name, count)) {
        throwIfInterrupted();
        await writeAll(handle, piece);
      }
    }
  } finally {
    await handle.close();
  }
}

async function writeAll(handle: FileHandle, bytes: Uint8Array): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    done += (await handle.write(bytes, done, bytes.length - done)).bytesWritten;
  }
}

/** Length and header of a safetensors file; padded with spaces so that data starts at a multiple of 8. */
function safetensorsHead(tensors: readonly StoredTensor[], dtype: StorageName): Uint8Array {
  const { name: dtypeName, bytes } = STORAGES[dtype];
  const header: Record<string, unknown> = { __metadata__: { format: 'pt' } };
  let end = 0;
  for (const { name, shape, count } of tensors) {
    header[name] = { dtype: dtypeName, shape, data_offsets: [end, end + count * bytes] };
    end += count * bytes;
  }
  const text = JSON.stringify(header);
  const json = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  return Buffer.concat([length, json]);
}

export const STANDARD_DEVIATION = 0.02;
/** 2^21 values: 4 MiB of BF16. Each piece starts at its own offset. */
const BLOCK_VALUES = 1 << 21;

interface Storage {
  /** Name in safetensors. */
  readonly name: string;
  /** Name in config.json. */
  readonly torch: string;
  readonly bytes: number;
  encode(values: Float32Array): Uint8Array;
}

function halves(values: Float32Array, bits: (value: number, index: number) => number): Uint8Array {
  return new Uint8Array(Uint16Array.from(values, bits).buffer);
}

/** BF16 is the upper half of f32, rounded to nearest even; Gaussian weights are finite, so there is no NaN to handle. */
function toBf16(values: Float32Array): Uint8Array {
  const words = new Uint32Array(values.buffer, values.byteOffset, values.length);
  return halves(values, (_, i) => (words[i]! + 0x7fff + ((words[i]! >>> 16) & 1)) >>> 16);
}

export const STORAGES = {
  bf16: { name: 'BF16', torch: 'bfloat16', bytes: 2, encode: toBf16 },
  f16: { name: 'F16', torch: 'float16', bytes: 2, encode: (values) => halves(values, f32ToF16) },
  f32: {
    name: 'F32',
    torch: 'float32',
    bytes: 4,
    encode: (values) => new Uint8Array(values.slice().buffer),
  },
} as const satisfies Record<string, Storage>;
export type StorageName = keyof typeof STORAGES;

/** `count` Gaussian values of mean 0 (Box–Muller). */
export function gaussian(
  count: number,
  next: () => number,
  deviation: number = STANDARD_DEVIATION,
): Float32Array {
  const values = new Float32Array(count);
  for (let i = 0; i < count; i += 2) {
    const radius = deviation * Math.sqrt(-2 * Math.log(1 - next()));
    const angle = 2 * Math.PI * next();
    values[i] = radius * Math.cos(angle);
    if (i + 1 < count) values[i + 1] = radius * Math.sin(angle);
  }
  return values;
}

/** Bytes of tensors, in pieces of at most one block. Same seed, same calls, same bytes. */
export class WeightStream {
  readonly #storage: Storage;
  readonly #random: ReturnType<typeof randomGenerator>;
  readonly #block: Uint8Array;
  readonly #one: Uint8Array;

  constructor(storage: StorageName, seed: number) {
    this.#storage = STORAGES[storage];
    this.#random = randomGenerator(seed);
    this.#block = this.#storage.encode(gaussian(BLOCK_VALUES, () => this.#random.next()));
    this.#one = this.#storage.encode(Float32Array.of(1));
  }

  /** Norm weights are 1, as initialized for training, so activations keep their scale. */
  *tensor(name: string, count: number): Generator<Uint8Array> {
    if (name.includes('norm')) {
      yield Buffer.alloc(count * this.#storage.bytes, this.#one);
      return;
    }
    for (let left = count; left > 0; ) {
      const start = Math.floor((this.#random.next() * BLOCK_VALUES) / 2);
      const values = Math.min(left, BLOCK_VALUES - start);
      yield this.#block.subarray(start * this.#storage.bytes, (start + values) * this.#storage.bytes);
      left -= values;
    }
  }
}
