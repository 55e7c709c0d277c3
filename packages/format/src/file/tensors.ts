/** Weights of an opened file: the pieces of a stream, read, checked and dequantized. */

import { CflowError } from '../errors.js';
import { elements, partBytes, partStripes, type Stream } from '../model/streams.js';
import { type Dtype, stripeBytes } from '../tiles/dtype.js';
import { dequantizeStripe } from '../tiles/tile.js';
import { requireStripe, stripeId } from '../tiles/tile-header.js';
import { type Crc32, crcHex, crc32 as portableCrc32 } from './checksum.js';
import type { Layout, ModelFile, Region } from './layout-types.js';
import { type ByteSource, readExactly } from './source.js';

/** Where each part and stripe of a stream lies, relative to the stream's first byte. */
export function* streamPieces(stream: Stream, dtype: Dtype) {
  let offset = 0;
  for (const part of stream.parts) {
    if (part.kind === 'plain') {
      const length = partBytes(part, dtype);
      yield { kind: 'plain' as const, tensor: part.tensor, offset, length };
      offset += length;
      continue;
    }
    for (const stripe of partStripes(part)) {
      const { tensor, rows } = stripe;
      const own = tensor.dtype ?? dtype;
      const length = stripeBytes(own, rows, tensor.shape[1]!);
      yield { kind: 'stripe' as const, tensor, stripe, dtype: own, offset, length };
      offset += length;
    }
  }
}

/**
 * Every tensor of a stream, dequantized to f32, row-major.
 * @param bytes the stream's bytes, whole
 * @throws CflowError FORMAT_INVALID if a tile header is not the expected one
 */
export function decodeStream(
  stream: Stream,
  { dtype, version }: Pick<Layout, 'dtype' | 'version'>,
  bytes: Uint8Array,
  file: string,
  base: number,
): Map<string, Float32Array> {
  const tensors = new Map<string, Float32Array>();
  for (const piece of streamPieces(stream, dtype)) {
    const own = bytes.subarray(piece.offset, piece.offset + piece.length);
    const { name, shape } = piece.tensor;
    if (piece.kind === 'plain') {
      tensors.set(name, readF32(own));
      continue;
    }
    const { rows, rowOffset } = piece.stripe;
    const cols = shape[1]!;
    requireStripe(piece.dtype, own, rows, cols, stripeId(piece.stripe, version), file, base + piece.offset);
    const values = tensors.get(name) ?? new Float32Array(elements(shape));
    tensors.set(name, values);
    values.set(dequantizeStripe(piece.dtype, own, rows, cols), rowOffset * cols);
  }
  return tensors;
}

function readF32(bytes: Uint8Array): Float32Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

/**
 * The bytes of a stream, whole and checked against their checksum.
 * @throws CflowError VERIFY_FAILED if they are damaged
 */
export async function readStreamBytes(
  source: ByteSource,
  file: ModelFile,
  region: Region,
  crc32: Crc32 = portableCrc32,
): Promise<Uint8Array> {
  const bytes = await readExactly(source, region.offset, region.length, region.name);
  requireChecksum(source, file, region, crc32(bytes));
  return bytes;
}

/** @throws CflowError VERIFY_FAILED if `actual`, the checksum of a region's bytes, is not what the metadata claim */
export function requireChecksum(
  source: ByteSource,
  file: ModelFile,
  { name, offset }: Region,
  actual: number,
): void {
  const claimed = file.metadata.checksums[name];
  if (claimed === undefined || claimed === crcHex(actual)) return;
  throw new CflowError('VERIFY_FAILED', `checksum is ${crcHex(actual)}, metadata say ${claimed}`, {
    file: source.name,
    field: name,
    offset,
    remedy: 'the file is damaged; copy or convert it again',
  });
}

/** All tensors of one stream. */
export async function readStream(
  source: ByteSource,
  file: ModelFile,
  name: string,
): Promise<Map<string, Float32Array>> {
  const region = file.streams.get(name);
  if (!region) throw new Error(`no stream ${name}`);
  const bytes = await readStreamBytes(source, file, region);
  return decodeStream(region.stream, file.layout, bytes, source.name, region.offset);
}

/** One tensor by canonical name, dequantized, row-major. Reads the stream that holds it. */
export async function readTensor(source: ByteSource, file: ModelFile, tensor: string): Promise<Float32Array> {
  for (const [name, { stream }] of file.streams) {
    const holds = stream.parts.some((part) =>
      (part.kind === 'plain' ? [part.tensor] : part.matrices).some((spec) => spec.name === tensor),
    );
    if (holds) return (await readStream(source, file, name)).get(tensor)!;
  }
  throw new Error(`no tensor ${tensor}`);
}
