/** The index of version 6: names, streams and tensors as rows of its tables. What a writer writes, a reader expects. */

import { modelStreams, STREAM_KINDS, type Stream, streamTensors, type TensorSpec } from '../model/streams.js';
import { DTYPES, type Dtype } from '../tiles/dtype.js';
import { writeStruct } from './binary.js';
import type { Layout, Region } from './layout-types.js';
import { MATRIX_IDS, type Struct } from './schema.js';
import { PLAIN_TENSOR, STREAM_ENTRY, TENSOR_ENTRY } from './schema6.js';
import { streamPieces } from './tensors.js';

/** A row of a table: fields by name, and the name that the row points to. */
export interface IndexRow {
  readonly name: string;
  readonly values: Readonly<Record<string, number>>;
}

/** Where each tensor of a stream begins in it, and how many bytes are its own. */
function placesIn(stream: Stream, dtype: Dtype): Map<string, { offset: number; length: number }> {
  const places = new Map<string, { offset: number; length: number }>();
  for (const { tensor, offset, length } of streamPieces(stream, dtype)) {
    const place = places.get(tensor.name);
    if (place) place.length += length;
    else places.set(tensor.name, { offset, length });
  }
  return places;
}

/** A row of the stream table, but for what depends on where the stream and its name lie. */
export function streamRow(stream: Stream, firstTensor: number): IndexRow {
  const { name, kind, layer, expert } = stream;
  return {
    name,
    values: {
      ...{ kind: STREAM_KINDS.indexOf(kind), layer, expert, reserved: 0, reserved_2: 0 },
      ...{ first_tensor: firstTensor, tensor_count: streamTensors(stream).length },
    },
  };
}

/** The rows of a stream's tensors, but for where their names lie. */
export function tensorRows(stream: Stream, index: number, dtype: Dtype): IndexRow[] {
  const places = placesIn(stream, dtype);
  return streamTensors(stream).map((tensor) => ({
    name: tensor.name,
    values: { ...tensorValues(tensor, dtype), stream: index, ...places.get(tensor.name)! },
  }));
}

function tensorValues({ shape, matrix, dtype: own }: TensorSpec, dtype: Dtype): Record<string, number> {
  return {
    dtype: DTYPES[matrix ? (own ?? dtype) : 'f32'].id,
    matrix_id: matrix ? MATRIX_IDS[matrix] : PLAIN_TENSOR,
    rank: shape.length,
    ...{ dim_0: shape[0]!, dim_1: shape[1] ?? 1, dim_2: 1, dim_3: 1 },
  };
}

/** The three sections as bytes. @param checksums CRC-32 of each stream by name */
export function encodeIndex(layout: Layout, checksums: ReadonlyMap<string, number>) {
  const placed = new Map(layout.regions.map((region) => [region.name, region]));
  const streams: IndexRow[] = [];
  const tensors: IndexRow[] = [];
  for (const { name } of modelStreams(layout.config)) {
    const { stream, offset, length } = placed.get(name) as Region & { readonly stream: Stream };
    const { values } = streamRow(stream, tensors.length);
    tensors.push(...tensorRows(stream, streams.length, layout.dtype));
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
