/** Writes synthetic checkpoints in the layout of Hugging Face, in bounded memory. */
import { randomBytes } from 'node:crypto';
import { rmSync } from 'node:fs';
import { type FileHandle, mkdir, open, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { CflowError, parameterCount } from '@cflow/format';
import { hold, throwIfInterrupted } from '../harness/resources.js';
import { type Geometry, geometryOf, type StoredTensor } from './geometry.js';
import { STORAGES, type StorageName, WeightStream } from './weights.js';

export interface SynthOptions {
  readonly directory: string;
  readonly geometry: string;
  /** Approximate bytes of weights, reached by the number of layers. */
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
  /** Of all weights, without headers. */
  readonly bytes: number;
  readonly seconds: number;
}

/**
 * Writes the checkpoint beside its final place, then gives it its name.
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

/** A configuration of cflow's own takes no field that it does not know. */
function isLlama({ configJson }: Geometry): boolean {
  return configJson.model_type !== 'cflow';
}

function shardName(index: number, count: number): string {
  const five = (n: number) => String(n).padStart(5, '0');
  return count === 1 ? 'model.safetensors' : `model-${five(index + 1)}-of-${five(count)}.safetensors`;
}

/**
 * Cuts the tensors, in order, into shards of about the same size; none is empty.
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

/** Length and header of a safetensors file; padded with spaces so that the data begin at a multiple of 8. */
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
