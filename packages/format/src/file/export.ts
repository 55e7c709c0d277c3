/** Back to safetensors: every tensor dequantized to F32 under its canonical name, the config in `__metadata__`. */

import { elements, partTensors, type Stream, type TensorSpec } from '../model/streams.js';
import type { ModelFile, Region } from './layout-types.js';
import type { ByteSource } from './source.js';
import { readStream } from './tensors.js';

function streamTensors(stream: Stream): TensorSpec[] {
  return stream.parts.flatMap((part) => [...partTensors(part)]);
}

/**
 * The bytes of a .safetensors file, in order; memory: one stream. Exact for f32 files, dequantized for the others.
 * Offsets follow the order of the streams in the file, so the source is read once, forward.
 */
export async function* exportSafetensors(source: ByteSource, file: ModelFile): AsyncGenerator<Uint8Array> {
  const streams = file.layout.regions.filter((region): region is Region & { stream: Stream } =>
    Boolean(region.stream),
  );
  yield safetensorsHeader(file, streams);
  for (const { name, stream } of streams) {
    const tensors = await readStream(source, file, name);
    for (const tensor of streamTensors(stream)) yield littleEndian(tensors.get(tensor.name)!);
  }
}

function safetensorsHeader(file: ModelFile, streams: readonly { stream: Stream }[]): Uint8Array {
  const header: Record<string, unknown> = {
    __metadata__: { format: 'pt', config: JSON.stringify({ ...file.config, model_type: 'cflow' }) },
  };
  let offset = 0;
  for (const tensor of streams.flatMap(({ stream }) => streamTensors(stream))) {
    const end = offset + 4 * elements(tensor.shape);
    header[tensor.name] = { dtype: 'F32', shape: tensor.shape, data_offsets: [offset, end] };
    offset = end;
  }
  const json = new TextEncoder().encode(JSON.stringify(header));
  // Padded with spaces, as the format allows, so that the data start on a multiple of 8.
  const padded = Math.ceil(json.length / 8) * 8;
  const bytes = new Uint8Array(8 + padded).fill(0x20);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(padded), true);
  bytes.set(json, 8);
  return bytes;
}

function littleEndian(values: Float32Array): Uint8Array {
  const bytes = new Uint8Array(4 * values.length);
  const view = new DataView(bytes.buffer);
  for (let i = 0; i < values.length; i++) view.setFloat32(4 * i, values[i]!, true);
  return bytes;
}
