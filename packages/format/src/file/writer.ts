/** Writing a file: one sequential pass over the regions, then the head, whose checksums are known only at the end. */

import { type Crc32, crc32 as portableCrc32 } from './checksum.js';
import { encodeExpertTable } from './head.js';
import { type HeadWriter, HeadWriter5, HeadWriter6, type WriterOptions } from './head-writer.js';
import type { Layout, Region } from './layout-types.js';
import type { Metadata } from './metadata.js';
import { checksummed } from './reader.js';
import type { ByteSink } from './source.js';
import { defaultVersion } from './version5.js';

/**
 * Plans the layout at once; then `writeStream` or `writeFixed` for each region of `layout.regions`, in order, then `finish`.
 * The head is written last: until then the file has no magic, so a cut-off file is never mistaken for a complete one.
 */
export class ModelWriter {
  readonly layout: Layout;
  readonly #sink: ByteSink;
  readonly #options: WriterOptions;
  readonly #head: HeadWriter;
  readonly #crc32: Crc32;
  readonly #checksums = new Map<string, number>();

  /** @throws CflowError LIMIT_EXCEEDED if the version cannot hold the model */
  constructor(sink: ByteSink, options: WriterOptions) {
    this.#sink = sink;
    this.#options = options;
    this.#crc32 = options.crc32 ?? portableCrc32;
    const { version = defaultVersion(options.metadata.config) } = options;
    this.#head = version === 5 ? new HeadWriter5(options) : new HeadWriter6(options);
    this.layout = this.#head.layout;
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
    this.#checksums.set(region.name, sum);
  }

  /** Writes what is known before the weights: expert tables, documents and padding. */
  async writeFixed(region: Region): Promise<void> {
    if (region.kind === 'expertTable') {
      await this.writeStream(region, [encodeExpertTable(this.layout, region.layer!)]);
    } else if (['padding', 'document', 'slack'].includes(region.kind)) {
      const bytes = new Uint8Array(region.length);
      bytes.set(this.#head.fixed(region.name));
      await this.#sink.write(region.offset, bytes);
    }
  }

  /** Writes the head. `source` may now carry the hashes of the source files; the document keeps its length. */
  async finish(source: Metadata['source'] = this.#options.metadata.source): Promise<void> {
    const missing = checksummed(this.layout).find(({ name }) => !this.#checksums.has(name));
    if (missing) throw new Error(`region ${missing.name} was not written`);
    const head = this.#head.encode({ ...this.#options.metadata, source }, this.#checksums, this.#crc32);
    await this.#sink.write(0, head);
  }
}
