/** What a writer needs to know of a version: the layout, and the head that goes with it. */

import { CflowError } from '../errors.js';
import { MAX_METADATA_BYTES } from '../limits.js';
import { type Stream, withDtypes } from '../model/streams.js';
import type { Dtype } from '../tiles/dtype.js';
import { type Crc32, crcHex } from './checksum.js';
import { type Documents, encodeDocuments } from './documents6.js';
import { encodeHead } from './head.js';
import { encodeHead6 } from './head6.js';
import { encodeIndex } from './index6.js';
import { planLayout } from './layout.js';
import type { Container, Layout } from './layout-types.js';
import { planLayout6, SECTIONS } from './layout6.js';
import { type Metadata, metadataSchema } from './metadata.js';
import { checksummed } from './reader.js';
import type { FormatVersion } from './schema.js';
import { requireVersion5 } from './version5.js';

/** Metadata without what the writer itself fills in. */
export type MetadataDraft = Omit<Metadata, 'checksums'>;

/** How a file is written. */
export interface WriterOptions {
  readonly dtype: Dtype;
  readonly container: Container;
  readonly metadata: MetadataDraft;
  /** Absent: 5 where it can hold the model, else 6. */
  readonly version?: FormatVersion | undefined;
  /** Version 6 alone: dtypes of matrices that are not of `dtype`, by name. */
  readonly dtypes?: ReadonlyMap<string, Dtype> | undefined;
  readonly crc32?: Crc32;
}

/** The head of one version. */
export interface HeadWriter {
  readonly layout: Layout;
  /** The bytes of a region behind the head that are known before the weights; the rest of it is zero. */
  fixed(region: string): Uint8Array;
  /**
   * The bytes of the head, once the weights are written.
   * @param checksums CRC-32 of each stream and expert table by name
   */
  encode(metadata: MetadataDraft, checksums: ReadonlyMap<string, number>, crc32: Crc32): Uint8Array;
}

const NOTHING = new Uint8Array(0);

export class HeadWriter5 implements HeadWriter {
  readonly layout: Layout;
  readonly #metadataBytes: number;

  /** @throws CflowError LIMIT_EXCEEDED, UNSUPPORTED if version 5 cannot hold the model or what belongs to it */
  constructor({ dtype, container, metadata, dtypes }: WriterOptions) {
    const { config } = metadata;
    requireVersion5(config);
    requireNone('extensions', metadata.extensions);
    requireNone('dtypes of single tensors', dtypes);
    const sums = checksummed(planLayout(config, dtype, container, 1));
    const blank = Object.fromEntries(sums.map(({ name }) => [name, '00000000']));
    this.#metadataBytes = encodeMetadata(metadata, blank).length;
    this.layout = planLayout(config, dtype, container, this.#metadataBytes);
  }

  fixed(): Uint8Array {
    return NOTHING;
  }

  encode(draft: MetadataDraft, checksums: ReadonlyMap<string, number>, crc32: Crc32): Uint8Array {
    const names = checksummed(this.layout).map(({ name }) => name);
    const sums = Object.fromEntries(names.map((name) => [name, crcHex(checksums.get(name)!)]));
    const metadata = encodeMetadata(draft, sums);
    requireLength(metadata.length, this.#metadataBytes);
    return encodeHead(this.layout, metadata, crc32);
  }
}

export class HeadWriter6 implements HeadWriter {
  readonly layout: Layout;
  readonly #documents: Documents;

  constructor({ dtype, container, metadata, dtypes }: WriterOptions) {
    const documents = encodeDocuments(metadata);
    const bytes = {
      metadata: documents.metadata.length,
      tokenizer: documents.tokenizer?.length ?? 0,
      settings: documents.settings.length,
    };
    const retyped = (stream: Stream) => withDtypes(stream, dtype, ({ name }) => dtypes?.get(name) ?? dtype);
    this.layout = planLayout6(metadata.config, dtype, container, bytes, retyped);
    this.#documents = documents;
  }

  fixed(region: string): Uint8Array {
    const { tokenizer = NOTHING, settings } = this.#documents;
    if (region === SECTIONS.tokenizer.region) return tokenizer;
    return region === SECTIONS.settings.region ? settings : NOTHING;
  }

  encode(draft: MetadataDraft, checksums: ReadonlyMap<string, number>, crc32: Crc32): Uint8Array {
    const { metadata } = encodeDocuments(draft);
    requireLength(metadata.length, this.#documents.metadata.length);
    const contents = { ...this.#documents, metadata, ...encodeIndex(this.layout, checksums) };
    return encodeHead6(this.layout, contents, crc32);
  }
}

function requireNone(what: string, value: object | undefined): void {
  if (value === undefined) return;
  throw new CflowError('UNSUPPORTED', `version 5 of the format has no ${what}`, {
    remedy: 'write version 6 (--format-version 6)',
  });
}

function requireLength(actual: number, planned: number): void {
  if (actual !== planned) throw new Error(`metadata has ${actual} bytes, planned were ${planned}`);
}

/** The metadata document as bytes; the same document gives the same bytes. */
export function encodeMetadata(draft: MetadataDraft, checksums: Record<string, string>): Uint8Array {
  const { config, tokenizer, generation, source, converter } = draft;
  const document = metadataSchema.parse({
    config,
    ...(tokenizer ? { tokenizer } : {}),
    ...(generation ? { generation } : {}),
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
