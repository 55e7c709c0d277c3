/** The index of version 6: names, streams and tensors as rows of its tables. What a writer writes, a reader expects. */

import {
  elements,
  modelStreams,
  partTensors,
  STREAM_KINDS,
  type Stream,
  type TensorSpec,
} from '../model/streams.js';
import { DTYPES, type Dtype, matrixBytes, stripeBytes, TILE_ROWS } from '../tiles/dtype.js';
import { writeStruct } from './binary.js';
import type { Layout, Region } from './layout-types.js';
import { MATRIX_IDS, type Struct } from './schema.js';
import { PLAIN_TENSOR, STREAM_ENTRY, TENSOR_ENTRY } from './schema6.js';

/** A row of a table: fields by name, and the name that the row points to. */
export interface IndexRow {
  readonly name: string;
  readonly values: Readonly<Record<string, number>>;
}

/** A row of the stream table, but for what depends on where the stream and its name lie. */
export function streamRow(
  { name, kind, layer, expert }: Stream,
  firstTensor: number,
  count: number,
): IndexRow {
  const values = {
    kind: STREAM_KINDS.indexOf(kind),
    reserved: 0,
    layer,
    expert,
    first_tensor: firstTensor,
    tensor_count: count,
    reserved_2: 0,
  };
  return { name, values };
}

/** The rows of a stream's tensors, but for where their names lie. */
export function tensorRows(stream: Stream, index: number, dtype: Dtype): IndexRow[] {
  const rows: IndexRow[] = [];
  let offset = 0;
  for (const part of stream.parts) {
    let first = offset;
    for (const tensor of partTensors(part)) {
      const { name, shape, dtype: own = dtype } = tensor;
      const [rowCount, cols = 1] = shape as [number, number?];
      const tiled = part.kind === 'tiles';
      const length = tiled ? matrixBytes(own, rowCount, cols) : 4 * elements(shape);
      rows.push({ name, values: tensorValues(tensor, tiled ? own : 'f32', index, first, length) });
      // The first tiles of interleaved matrices follow one another; the rest need no walk.
      if (tiled) first += stripeBytes(own, Math.min(TILE_ROWS, rowCount), cols);
      offset += length;
    }
  }
  return rows;
}

function tensorValues(
  { shape, matrix }: TensorSpec,
  dtype: Dtype,
  stream: number,
  offset: number,
  length: number,
): IndexRow['values'] {
  return {
    dtype: DTYPES[dtype].id,
    matrix_id: matrix ? MATRIX_IDS[matrix] : PLAIN_TENSOR,
    stream,
    rank: shape.length,
    dim_0: shape[0]!,
    dim_1: shape[1] ?? 1,
    dim_2: 1,
    dim_3: 1,
    offset,
    length,
  };
}

/** The three sections as bytes. @param checksums CRC-32 of each stream by name */
export function encodeIndex(layout: Layout, checksums: ReadonlyMap<string, number>) {
  const placed = new Map(layout.regions.map((region) => [region.name, region]));
  const streams: IndexRow[] = [];
  const tensors: IndexRow[] = [];
  for (const { name } of modelStreams(layout.config)) {
    const { stream, offset, length } = placed.get(name) as Region & { readonly stream: Stream };
    const own = tensorRows(stream, streams.length, layout.dtype);
    const { values } = streamRow(stream, tensors.length, own.length);
    tensors.push(...own);
    streams.push({ name, values: { ...values, offset, length, checksum: checksums.get(name)! } });
  }
  const names = new TextEncoder().encode([...streams, ...tensors].map(({ name }) => name).join(''));
  const streamNames = streams.reduce((sum, { name }) => sum + name.length, 0);
  return {
    names,
    streams: table(STREAM_ENTRY, streams, 0),
    tensors: table(TENSOR_ENTRY, tensors, streamNames),
  };
}

/** @param nameOffset of the first row's name; names follow one another, in ASCII */
function table(struct: Struct, rows: readonly IndexRow[], nameOffset: number): Uint8Array {
  const bytes = new Uint8Array(rows.length * struct.bytes);
  let at = nameOffset;
  for (const [index, { name, values }] of rows.entries()) {
    const named = { ...values, name_offset: at, name_length: name.length };
    writeStruct(struct, bytes, index * struct.bytes, named);
    at += name.length;
  }
  return bytes;
}
