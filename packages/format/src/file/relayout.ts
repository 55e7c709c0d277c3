/** The same model in the other container or the other version, losslessly. */

import { streamTensors } from '../model/streams.js';
import type { Dtype } from '../tiles/dtype.js';
import { requireStripe, stripeId, writeStripeHeaders } from '../tiles/tile-header.js';
import { type Crc32, crc32 as portableCrc32 } from './checksum.js';
import type { Container, Layout, ModelFile, Region } from './layout-types.js';
import type { FormatVersion } from './schema.js';
import { type ByteSink, type ByteSource, readExactly } from './source.js';
import { requireChecksum, streamPieces } from './tensors.js';
import { ModelWriter } from './writer.js';

/** How a file is laid out anew. */
export interface RelayoutOptions {
  readonly container: Container;
  /** Absent: that of the file. */
  readonly version?: FormatVersion | undefined;
  readonly crc32?: Crc32;
  /** Bytes of the output that are done since the last call. */
  readonly onProgress?: (bytes: number) => void;
}

const COPY_BYTES = 8 * 1024 * 1024;

interface Copy {
  readonly source: ByteSource;
  readonly file: ModelFile;
  readonly version: FormatVersion;
  readonly crc32: Crc32;
}

/** Bytes of a stream as they are; its checksum is compared behind the last. */
async function* copied({ source, file, crc32 }: Copy, region: Region): AsyncGenerator<Uint8Array> {
  let sum = 0;
  for (let at = 0; at < region.length; at += COPY_BYTES) {
    const length = Math.min(COPY_BYTES, region.length - at);
    const bytes = await readExactly(source, region.offset + at, length, region.name);
    sum = crc32(bytes, sum);
    yield bytes;
  }
  requireChecksum(source, file, region, sum);
}

/** The same with tile headers of another version, stripe by stripe. */
async function* translated(
  { source, file, version, crc32 }: Copy,
  region: Region,
): AsyncGenerator<Uint8Array> {
  let sum = 0;
  for (const piece of streamPieces(region.stream!, file.dtype)) {
    const at = region.offset + piece.offset;
    const read = await readExactly(source, at, piece.length, region.name);
    sum = crc32(read, sum);
    if (piece.kind === 'plain') {
      yield read;
      continue;
    }
    const { rows, tensor } = piece.stripe;
    const cols = tensor.shape[1]!;
    requireStripe(
      piece.dtype,
      read,
      rows,
      cols,
      stripeId(piece.stripe, file.layout.version),
      source.name,
      at,
    );
    // A source over memory may hand out its own bytes.
    const bytes = read.slice();
    writeStripeHeaders(piece.dtype, bytes, rows, cols, stripeId(piece.stripe, version));
    yield bytes;
  }
  requireChecksum(source, file, region, sum);
}

/** Dtypes of the tensors that are not of the file's. */
export function ownDtypes({ streams }: Pick<ModelFile, 'streams'>): ReadonlyMap<string, Dtype> | undefined {
  const own = [...streams.values()].flatMap(({ stream }) =>
    streamTensors(stream).flatMap(({ name, dtype }) => (dtype ? [[name, dtype] as const] : [])),
  );
  return own.length ? new Map(own) : undefined;
}

/** Writer of `file` in another container or version. */
export function relayoutWriter(sink: ByteSink, file: ModelFile, options: RelayoutOptions): ModelWriter {
  const { container, version = file.layout.version, crc32 } = options;
  const { checksums: _, ...metadata } = file.metadata;
  return new ModelWriter(sink, {
    ...{ dtype: file.dtype, container, version, metadata, dtypes: ownDtypes(file) },
    ...(crc32 ? { crc32 } : {}),
  });
}

/**
 * Writes the same model anew. Weights keep their bits: within a version streams are the same bytes in every order, and
 * between versions tile headers alone differ.
 * @throws CflowError VERIFY_FAILED if the source is damaged, LIMIT_EXCEEDED or UNSUPPORTED if version 5 cannot hold it
 */
export async function relayout(
  source: ByteSource,
  file: ModelFile,
  sink: ByteSink,
  options: RelayoutOptions,
): Promise<Layout> {
  const { crc32 = portableCrc32, onProgress } = options;
  const writer = relayoutWriter(sink, file, options);
  const { version } = writer.layout;
  const copy = { source, file, version, crc32 };
  const pieces = version === file.layout.version ? copied : translated;
  for (const region of writer.layout.regions) {
    const from = file.streams.get(region.name);
    if (from) await writer.writeStream(region, pieces(copy, from));
    else await writer.writeFixed(region);
    onProgress?.(region.length);
  }
  await writer.finish();
  return writer.layout;
}
