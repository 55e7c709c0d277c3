import type { ModelConfig } from '../model/config.js';
import type { Stream } from '../model/streams.js';
import type { Dtype } from '../tiles/dtype.js';
import type { Metadata } from './metadata.js';
import type { FormatVersion } from './schema.js';

/** `cflow`: layer by layer; `vflow`: stage by stage. */
export type Container = 'cflow' | 'vflow';

/** What a run of bytes of a file can be. */
export const REGION_KINDS = [
  'header',
  'metadata',
  'groupTable',
  'layerTable',
  'expertTable',
  'index',
  'document',
  'slack',
  'other',
  'stream',
  'padding',
] as const;
/** One of `REGION_KINDS`. */
export type RegionKind = (typeof REGION_KINDS)[number];

/** A named run of bytes. The regions of a file cover every byte exactly once, in order. */
export interface Region {
  /** `header`, `metadata`, `layer_table`, `layers.3.expert_table`, a section's or a stream's name, or `padding@<offset>`. */
  readonly name: string;
  readonly kind: RegionKind;
  readonly offset: number;
  readonly length: number;
  /** Set for kind `stream`. */
  readonly stream?: Stream;
  /** Set for `expertTable`. */
  readonly layer?: number;
  /** Set for sections of version 6 in a file: the bytes in use, which may be fewer than `length`. */
  readonly used?: { readonly length: number; readonly checksum: number };
}

/** Consecutive layers of one attention geometry (.vflow). */
export interface VerticalGroup {
  readonly firstLayer: number;
  readonly layerCount: number;
}

/** Where every byte of a file lies; planned by the writer, and compared with what a reader finds. */
export interface Layout {
  readonly version: FormatVersion;
  readonly container: Container;
  readonly dtype: Dtype;
  readonly config: ModelConfig;
  /** In file order, gapless from 0 to `fileBytes`. */
  readonly regions: readonly Region[];
  readonly groups: readonly VerticalGroup[];
  readonly fileBytes: number;
}

/** An opened file: what its head says, checked. Weights are read on demand through `source`. */
export interface ModelFile {
  readonly container: Container;
  readonly dtype: Dtype;
  readonly config: ModelConfig;
  readonly metadata: Metadata;
  readonly layout: Layout;
  /** Region of each stream by stream name. */
  readonly streams: ReadonlyMap<string, Region & { readonly stream: Stream }>;
}
