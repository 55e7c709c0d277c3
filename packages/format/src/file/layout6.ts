/** Where every byte of a file of version 6 lies: sections of the head, streams as in version 5, documents. */

import type { ModelConfig } from '../model/config.js';
import { modelStreams, type Stream, streamBytes, streamTensors } from '../model/streams.js';
import { alignUp, type Dtype, STREAM_ALIGNMENT } from '../tiles/dtype.js';
import {
  bodyOrder,
  checkStreamCount,
  REGION,
  RegionList,
  TABLE_ALIGNMENT,
  verticalGroups,
} from './layout.js';
import type { Container, Layout, RegionKind } from './layout-types.js';
import { PROLOGUE, SECTION_ENTRY, type SectionKind, STREAM_ENTRY, TENSOR_ENTRY } from './schema6.js';

/** Bytes of the documents, which are fixed before any weight is written. */
export interface DocumentBytes {
  readonly metadata: number;
  /** 0 = none. */
  readonly tokenizer: number;
  readonly settings: number;
}

/** Section by section: what its region is called, of which kind that is, and the struct of its entries. */
export const SECTIONS = {
  metadata: { region: REGION.metadata, kind: 'metadata' },
  names: { region: 'names', kind: 'index' },
  streams: { region: 'stream_table', kind: 'index', entry: STREAM_ENTRY },
  tensors: { region: 'tensor_table', kind: 'index', entry: TENSOR_ENTRY },
  tokenizer: { region: 'tokenizer', kind: 'document' },
  settings: { region: 'settings', kind: 'document' },
  slack: { region: 'slack', kind: 'slack' },
} as const satisfies Record<SectionKind, { region: string; kind: RegionKind; entry?: object }>;

/** The sections in front of the streams: what a reader needs to open a file. */
export const HEAD_SECTIONS = ['metadata', 'names', 'streams', 'tensors'] as const;

/** Bytes set aside for settings beyond those in use; slack has as many, so that they can be replaced in place. */
const SPARE_BYTES = 16_384;

/** What the settings may grow to without moving anything. */
export function settingsCapacity(bytes: number): number {
  return alignUp(bytes + SPARE_BYTES, STREAM_ALIGNMENT);
}

/** The sections that a file with these documents has, in file order. */
export function sectionKinds({ tokenizer }: DocumentBytes): SectionKind[] {
  return [...HEAD_SECTIONS, ...(tokenizer ? (['tokenizer'] as const) : []), 'settings', 'slack'];
}

/**
 * Lays out a file of version 6.
 * @param retyped gives a stream the dtypes of its tensors
 * @throws CflowError LIMIT_EXCEEDED if the file would be larger than 2^53 − 1 bytes
 */
export function planLayout6(
  config: ModelConfig,
  dtype: Dtype,
  container: Container,
  documents: DocumentBytes,
  retyped: (stream: Stream) => Stream = (stream) => stream,
): Layout {
  checkStreamCount(config);
  const kinds = sectionKinds(documents);
  const regions = new RegionList();
  const groups = container === 'vflow' ? verticalGroups(config) : [];
  const lengths = sectionBytes(config, documents);
  const add = (kind: SectionKind) => {
    regions.align(TABLE_ALIGNMENT);
    regions.add(SECTIONS[kind].region, SECTIONS[kind].kind, lengths[kind]);
  };
  regions.add(REGION.header, 'header', PROLOGUE.bytes + kinds.length * SECTION_ENTRY.bytes);
  for (const kind of HEAD_SECTIONS) add(kind);
  for (const item of bodyOrder(config, container, groups)) {
    if (item.kind === 'expertTable') continue;
    const stream = retyped(item.stream);
    regions.align(STREAM_ALIGNMENT);
    regions.add(stream.name, 'stream', streamBytes(stream, dtype), { stream });
  }
  for (const kind of kinds.slice(HEAD_SECTIONS.length)) add(kind);
  return { version: 6, container, dtype, config, regions: regions.list, groups, fileBytes: regions.size() };
}

function sectionBytes(config: ModelConfig, documents: DocumentBytes): Record<SectionKind, number> {
  let names = 0;
  let streams = 0;
  let tensors = 0;
  for (const stream of modelStreams(config)) {
    names += stream.name.length;
    streams++;
    for (const { name } of streamTensors(stream)) {
      names += name.length;
      tensors++;
    }
  }
  const settings = settingsCapacity(documents.settings);
  return {
    metadata: documents.metadata,
    names,
    streams: streams * STREAM_ENTRY.bytes,
    tensors: tensors * TENSOR_ENTRY.bytes,
    tokenizer: documents.tokenizer,
    settings,
    slack: settings,
  };
}
