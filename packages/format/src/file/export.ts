/** Back to safetensors: every tensor dequantized to F32 under its canonical name, the config in `__metadata__`. */

import { elements, streamTensors } from '../model/streams.js';
import { dequantizeStripe } from '../tiles/tile.js';
import { requireStripe, stripeId } from '../tiles/tile-header.js';
import { type Crc32, crc32 as portableCrc32 } from './checksum.js';
import type { ModelFile, Region } from './layout-types.js';
import { type ByteSink, type ByteSource, readExactly } from './source.js';
import { requireChecksum, streamPieces } from './tensors.js';

/** How a model is written as one safetensors file. */
export interface SafetensorsExportOptions {
  readonly crc32?: Crc32;
  /** Bytes of the source that were read since the last call. */
  readonly onProgress?: (bytes: number) => void;
}

/** Where everything goes in a .safetensors file: offsets follow the order of the streams. */
interface Plan {
  readonly head: Uint8Array;
  /** First byte of each tensor in the file, by name. */
  readonly offsets: ReadonlyMap<string, number>;
  readonly fileBytes: number;
}

/** Bytes of the .safetensors file that `exportSafetensors` writes. */
export function safetensorsBytes(file: ModelFile): number {
  return planSafetensors(file).fileBytes;
}

/**
 * Writes a .safetensors file; returns its bytes. Exact for f32 files, dequantized for the others. The source is read
 * once, forward; the sink is written at positions, since matrices of one part are interleaved by stripe. Memory: one
 * stripe, or one plain tensor.
 * @throws CflowError VERIFY_FAILED (checksum of a stream), FORMAT_INVALID (tile header), and as the sink
 */
export async function exportSafetensors(
  source: ByteSource,
  file: ModelFile,
  sink: ByteSink,
  { crc32 = portableCrc32, onProgress }: SafetensorsExportOptions = {},
): Promise<number> {
  const { head, offsets, fileBytes } = planSafetensors(file);
  await sink.write(0, head);
  for (const region of file.layout.regions) {
    if (!region.stream) continue;
    let sum = 0;
    for (const piece of streamPieces(region.stream, file.dtype)) {
      const at = region.offset + piece.offset;
      const bytes = await readExactly(source, at, piece.length, region.name);
      sum = crc32(bytes, sum);
      const start = offsets.get(piece.tensor.name)!;
      if (piece.kind === 'plain') await sink.write(start, bytes);
      else {
        const { rows, rowOffset, tensor } = piece.stripe;
        const cols = tensor.shape[1]!;
        const id = stripeId(piece.stripe, file.layout.version);
        requireStripe(piece.dtype, bytes, rows, cols, id, source.name, at);
        const values = dequantizeStripe(piece.dtype, bytes, rows, cols);
        await sink.write(start + 4 * rowOffset * cols, littleEndianF32(values));
      }
      onProgress?.(piece.length);
    }
    requireChecksum(source, file, region, sum);
  }
  return fileBytes;
}

function planSafetensors({ config, layout }: ModelFile): Plan {
  const header: Record<string, unknown> = {
    __metadata__: { format: 'pt', config: JSON.stringify({ ...config, model_type: 'cflow' }) },
  };
  const starts: [name: string, start: number][] = [];
  let offset = 0;
  for (const { shape, name } of layout.regions.flatMap(({ stream }: Region) =>
    stream ? streamTensors(stream) : [],
  )) {
    const end = offset + 4 * elements(shape);
    header[name] = { dtype: 'F32', shape, data_offsets: [offset, end] };
    starts.push([name, offset]);
    offset = end;
  }
  const json = new TextEncoder().encode(JSON.stringify(header));
  // Padded with spaces, as the format allows, so that the data start on a multiple of 8.
  const padded = Math.ceil(json.length / 8) * 8;
  const head = new Uint8Array(8 + padded).fill(0x20);
  new DataView(head.buffer).setBigUint64(0, BigInt(padded), true);
  head.set(json, 8);
  const offsets = new Map(starts.map(([name, start]) => [name, head.length + start]));
  return { head, offsets, fileBytes: head.length + offset };
}

const HOST_IS_LITTLE_ENDIAN = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;

/** The bytes of `values` in a file; on most machines the same memory. */
export function littleEndianF32(values: Float32Array): Uint8Array {
  if (HOST_IS_LITTLE_ENDIAN) return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  const bytes = new Uint8Array(4 * values.length);
  const view = new DataView(bytes.buffer);
  for (let i = 0; i < values.length; i++) view.setFloat32(4 * i, values[i]!, true);
  return bytes;
}
