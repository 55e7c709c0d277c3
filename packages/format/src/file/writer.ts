/** Writing a file: one sequential pass over the regions, then the head, whose checksums are known only at the end. */

import { CflowError } from '../errors.js';
import { MAX_METADATA_BYTES } from '../limits.js';
import type { Dtype } from '../tiles/dtype.js';
import { type Crc32, crcHex, crc32 as portableCrc32 } from './checksum.js';
import { encodeExpertTable, encodeHead } from './head.js';
import { planLayout } from './layout.js';
import type { Container, Layout, ModelFile, Region } from './layout-types.js';
import { type Metadata, metadataSchema } from './metadata.js';
import { checksummed } from './reader.js';
import type { ByteSink, ByteSource } from './source.js';

/** Metadata without what the writer itself fills in. */
export type MetadataDraft = Omit<Metadata, 'checksums'>;

/** How a file is written. */
export interface WriterOptions {
  readonly dtype: Dtype;
  readonly container: Container;
  readonly metadata: MetadataDraft;
  readonly crc32?: Crc32;
}

/**
 * Plans the layout at once; then `write` each region of `layout.regions` that `needsBytes`, in order, then `finish`.
 * The head is written last: until then the file has no magic, so a cut-off file is never mistaken for a complete one.
 */
export class ModelWriter {
  readonly layout: Layout;
  readonly #sink: ByteSink;
  readonly #options: WriterOptions;
  readonly #crc32: Crc32;
  readonly #checksums: Record<string, string> = {};
  readonly #metadataBytes: number;

  constructor(sink: ByteSink, options: WriterOptions) {
    this.#sink = sink;
    this.#options = options;
    this.#crc32 = options.crc32 ?? portableCrc32;
    const { config } = options.metadata;
    const sums = checksummed(planLayout(config, options.dtype, options.container, 1));
    this.#metadataBytes = encodeMetadata(
      options.metadata,
      Object.fromEntries(sums.map(({ name }) => [name, '00000000'])),
    ).length;
    this.layout = planLayout(config, options.dtype, options.container, this.#metadataBytes);
  }

  /** Writes a stream's bytes, in pieces of any size. */
  async writeStream(region: Region, pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<void> {
    let written = 0;
    let sum = 0;
    for await (const piece of pieces) {
      await this.#sink.write(region.offset + written, piece);
      sum = this.#crc32(piece, sum);
      written += piece.length;
    }
    if (written !== region.length)
      throw new Error(`${region.name}: wrote ${written} bytes of ${region.length}`);
    this.#checksums[region.name] = crcHex(sum);
  }

  /** Writes what the layout itself determines: expert tables and padding. */
  async writeFixed(region: Region): Promise<void> {
    if (region.kind === 'expertTable') {
      await this.writeStream(region, [encodeExpertTable(this.layout, region.layer!)]);
    } else if (region.kind === 'padding') {
      await this.#sink.write(region.offset, new Uint8Array(region.length));
    }
  }

  /** Throws VERIFY_FAILED if a stream written so far differs from its `claimed` checksum: a damaged source is not copied on. */
  requireChecksums(claimed: Readonly<Record<string, string>>, file: string): void {
    for (const { name, stream } of this.layout.regions) {
      const sum = this.#checksums[name];
      if (stream && claimed[name] !== undefined && sum !== claimed[name]) {
        throw new CflowError('VERIFY_FAILED', `checksum is ${sum}, metadata say ${claimed[name]}`, {
          file,
          field: name,
        });
      }
    }
  }

  /** Writes the head. `source` may now carry the hashes of the source files; the document keeps its length. */
  async finish(source: Metadata['source'] = this.#options.metadata.source): Promise<void> {
    const names = checksummed(this.layout).map(({ name }) => name);
    const missing = names.find((name) => !this.#checksums[name]);
    if (missing) throw new Error(`region ${missing} was not written`);
    const checksums = Object.fromEntries(names.map((name) => [name, this.#checksums[name]!]));
    const metadata = encodeMetadata({ ...this.#options.metadata, source }, checksums);
    if (metadata.length !== this.#metadataBytes) {
      throw new Error(`metadata has ${metadata.length} bytes, planned were ${this.#metadataBytes}`);
    }
    await this.#sink.write(0, encodeHead(this.layout, metadata, this.#crc32));
  }
}

/** The metadata document as bytes; the same document gives the same bytes. */
export function encodeMetadata(draft: MetadataDraft, checksums: Record<string, string>): Uint8Array {
  const { config, tokenizer, source, converter } = draft;
  const document = metadataSchema.parse({
    config,
    ...(tokenizer ? { tokenizer } : {}),
    source,
    converter,
    checksums,
  });
  const bytes = new TextEncoder().encode(JSON.stringify(document));
  if (bytes.length > MAX_METADATA_BYTES) {
    throw new CflowError(
      'LIMIT_EXCEEDED',
      `${bytes.length} bytes of metadata, the limit is ${MAX_METADATA_BYTES}`,
    );
  }
  return bytes;
}

const COPY_BYTES = 8 * 1024 * 1024;

async function* copy(source: ByteSource, { offset, length }: Region): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < length; at += COPY_BYTES)
    yield source.read(offset + at, Math.min(COPY_BYTES, length - at));
}

/** Writes the same model in the other container, losslessly: streams are the same bytes in both, only their order differs. */
export async function relayout(
  source: ByteSource,
  file: ModelFile,
  sink: ByteSink,
  container: Container,
  options: { readonly crc32?: Crc32; readonly onProgress?: (bytes: number) => void } = {},
): Promise<Layout> {
  const { crc32, onProgress } = options;
  const { checksums: claimed, ...metadata } = file.metadata;
  const writer = new ModelWriter(sink, {
    dtype: file.dtype,
    container,
    metadata,
    ...(crc32 ? { crc32 } : {}),
  });
  for (const region of writer.layout.regions) {
    const from = file.streams.get(region.name);
    if (from) await writer.writeStream(region, copy(source, from));
    else await writer.writeFixed(region);
    onProgress?.(region.length);
  }
  writer.requireChecksums(claimed, source.name);
  await writer.finish();
  return writer.layout;
}
