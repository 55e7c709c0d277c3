/** The head of a file: header, metadata and tables, to and from bytes. */

import { CflowError, invalid } from '../errors.js';
import { COMBINE_STYLE_NAMES, COMBINE_STYLES, type ModelConfig, parseModelConfig } from '../model/config.js';
import { streamName } from '../model/streams.js';
import { DTYPES, TILE_COLS, TILE_ROWS } from '../tiles/dtype.js';
import { readMagic, readStruct, writeStruct } from './binary.js';
import { crc32 as portableCrc32 } from './checksum.js';
import { foreignFile } from './foreign.js';
import { HEADERS, REGION } from './layout.js';
import type { Container, Layout, Region } from './layout-types.js';
import {
  CFLOW_MAGIC,
  EXPERT_ENTRY,
  FEATURE_FLAGS,
  FORMAT_VERSIONS,
  type FormatVersion,
  GROUP_DESCRIPTOR,
  LAYER_ENTRY,
  type Struct,
  VERSION,
  VFLOW_MAGIC,
  VOCAB_ENTRY,
} from './schema.js';

/** The fields of a struct by name; numbers, also where a field has 64 bits. */
export type HeaderValues = Record<string, number>;
/** First bytes of each container. */
export const MAGICS: Record<Container, string> = { cflow: CFLOW_MAGIC, vflow: VFLOW_MAGIC };

/** Fields of both headers that follow from the config alone; a file whose metadata say otherwise is rejected. */
export function configFields(config: ModelConfig): HeaderValues {
  const first = config.layers[0]!.attention;
  const full = (config.layers.find(({ attention }) => !attention.slidingWindow) ?? config.layers[0]!)
    .attention;
  const ffn = config.layers.find((layer) => layer.ffn)?.ffn;
  const experts = config.layers.find((layer) => layer.experts)?.experts;
  return {
    hidden_dim: config.hiddenDim,
    num_layers: config.layers.length,
    num_q_heads: first.heads,
    num_kv_heads: first.kvHeads,
    global_kv_heads: full.kvHeads,
    head_dim: first.headDim,
    global_head_dim: full.headDim,
    ffn_dim: ffn?.dim ?? 0,
    expert_ffn_dim: experts?.dim ?? 0,
    num_experts: experts?.count ?? 0,
    top_k: experts?.topK ?? 0,
    vocab_size: config.vocabSize,
    sliding_window:
      config.layers.find(({ attention }) => attention.slidingWindow)?.attention.slidingWindow ?? 0,
    sliding_pattern: slidingPattern(config),
    dense_delay: config.denseDelay,
    expert_delay: config.expertDelay,
    combine_style: COMBINE_STYLES[config.combineStyle],
    feature_flags: featureFlags(config),
    final_logit_softcap: Math.fround(config.finalLogitSoftcap ?? 0),
  };
}

/** 0: all layers alike; n: layer ℓ is full where (ℓ + 1) mod n = 0; 255: neither, only the metadata know. */
function slidingPattern({ layers }: ModelConfig): number {
  const full = layers.map(({ attention }) => !attention.slidingWindow);
  if (full.every((value) => value === full[0])) return 0;
  const n = full.indexOf(true) + 1;
  return n < 255 && full.every((value, index) => value === ((index + 1) % n === 0)) ? n : 255;
}

function featureFlags(config: ModelConfig): number {
  return (
    (config.scaleEmbeddings ? FEATURE_FLAGS.scaleEmbeddings : 0) |
    (config.layers[0]!.attention.vNorm ? FEATURE_FLAGS.vNorm : 0) |
    (config.tiedEmbeddings ? FEATURE_FLAGS.tiedEmbeddings : 0)
  );
}

/** The config of a file without metadata: the report's own models, with the report's constants (§4.3, §5.1.2). */
export function configFromHeader(h: HeaderValues, file: string): ModelConfig {
  const style = COMBINE_STYLE_NAMES.find((name) => COMBINE_STYLES[name] === h.combine_style);
  if (!style)
    invalid(`${h.combine_style} is no combine style, known are 0 to 6`, { file, field: 'combine_style' });
  const layer = {
    attention: {
      heads: h.num_q_heads!,
      kvHeads: h.num_kv_heads!,
      headDim: h.head_dim!,
      rope: { theta: 10_000, rotaryDim: h.head_dim! },
      scale: 1 / Math.sqrt(h.head_dim || 1),
      vNorm: Boolean(h.feature_flags! & FEATURE_FLAGS.vNorm),
    },
    ...(h.ffn_dim ? { ffn: { dim: h.ffn_dim, activation: 'gelu' } } : {}),
    ...(h.num_experts
      ? { experts: { count: h.num_experts, topK: h.top_k, dim: h.expert_ffn_dim, activation: 'gelu' } }
      : {}),
  };
  return parseModelConfig(
    {
      name: 'unnamed',
      family: 'cflow',
      hiddenDim: h.hidden_dim,
      vocabSize: h.vocab_size,
      contextLength: 2048,
      normEps: 1e-6,
      tiedEmbeddings: Boolean(h.feature_flags! & FEATURE_FLAGS.tiedEmbeddings),
      scaleEmbeddings: Boolean(h.feature_flags! & FEATURE_FLAGS.scaleEmbeddings),
      ...(h.final_logit_softcap !== 0 ? { finalLogitSoftcap: h.final_logit_softcap } : {}),
      combineStyle: style,
      denseDelay: h.dense_delay,
      expertDelay: h.expert_delay,
      ...(style === 'decoupledStreams' ? { mergeInterval: 3 } : {}),
      ...(style === 'fixedPoint' ? { iterations: 3 } : {}),
      layers: Array.from({ length: h.num_layers! }, () => layer),
    },
    file,
  );
}

/** Container and version of a file, by its first bytes; both are checked before anything else is believed. */
export function identify(
  bytes: Uint8Array,
  file: string,
): { readonly container: Container; readonly version: FormatVersion } {
  const foreign = foreignFile(bytes, 'cflow');
  if (foreign)
    invalid(`${foreign.what}, where a .cflow or .vflow is expected`, { file, remedy: foreign.remedy });
  if (bytes.length < 16) {
    invalid(`need at least 64 bytes of header, have ${bytes.length}`, {
      file,
      field: 'magic',
      remedy: 'the file is empty or truncated',
    });
  }
  const magic = readMagic(bytes);
  const container = (Object.keys(MAGICS) as Container[]).find((name) => MAGICS[name] === magic);
  if (!container) {
    invalid(`magic is ${JSON.stringify(magic)}, expected "CFLOW\\0\\0\\0" or "VFLOW\\0\\0\\0"`, {
      file,
      field: 'magic',
      offset: 0,
      remedy: 'this is not a cflow file',
    });
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const version = container === 'cflow' ? view.getUint32(8, true) : view.getUint8(8);
  const known = FORMAT_VERSIONS.find((one) => one === version);
  if (!known) {
    throw new CflowError(
      'VERSION_UNSUPPORTED',
      `version ${version} of the format, this cflow reads versions ${FORMAT_VERSIONS.join(' and ')}`,
      {
        file,
        field: 'version',
        offset: 8,
        remedy: version < VERSION ? 'convert the checkpoint again' : 'use a newer cflow',
      },
    );
  }
  return { container, version: known };
}

/** Header, metadata and tables as bytes, from 0 to the end of the layer table, with the head checksum filled in. */
export function encodeHead(layout: Layout, metadata: Uint8Array, crc32 = portableCrc32): Uint8Array {
  const table = named(layout, REGION.layerTable);
  const head = new Uint8Array(table.offset + table.length);
  writeHeader(layout, metadata.length, head, 0);
  if (metadata.length) head.set(metadata, named(layout, REGION.metadata).offset);
  if (layout.container === 'vflow') writeGroupTable(layout, head);
  writeLayerTable(layout, head, table.offset);
  writeHeader(layout, metadata.length, head, crc32(head));
  return head;
}

function writeHeader(layout: Layout, metadataLength: number, head: Uint8Array, checksum: number): void {
  const struct = HEADERS[layout.container];
  const tables =
    layout.container === 'cflow' ? {} : { group_table_offset: named(layout, REGION.groupTable).offset };
  writeStruct(struct, head, 0, {
    ...configFields(layout.config),
    ...tables,
    magic: MAGICS[layout.container],
    version: VERSION,
    quant_type: DTYPES[layout.dtype].id,
    quant_group: DTYPES[layout.dtype].group,
    tile_rows: TILE_ROWS,
    tile_cols: TILE_COLS,
    group_count: layout.groups.length,
    layer_table_offset: named(layout, REGION.layerTable).offset,
    metadata_offset: metadataLength ? named(layout, REGION.metadata).offset : 0,
    metadata_length: metadataLength,
    file_size: layout.fileBytes,
    head_checksum: checksum,
  });
}

function named(layout: Layout, name: string): Region {
  return indexOf(layout).get(name) ?? missing(name);
}
function missing(name: string): never {
  throw new Error(`no region ${name}`);
}

const indexes = new WeakMap<Layout, Map<string, Region>>();
function indexOf(layout: Layout): Map<string, Region> {
  let index = indexes.get(layout);
  if (!index) {
    index = new Map(layout.regions.map((region) => [region.name, region]));
    indexes.set(layout, index);
  }
  return index;
}

/** The streams and tables that a LayerEntry or VocabEntry points to, by field prefix. */
export const LAYER_POINTERS = {
  attention: streamName.attention,
  dense: streamName.dense,
  router: streamName.router,
  expert_table: REGION.expertTable,
} as const;
/** Fields of VocabEntry by prefix, and what they point to. */
export const VOCAB_POINTERS = {
  final_norm: streamName.finalNorm,
  embedding: streamName.embedding,
  lm_head: streamName.lmHead,
} as const;

function pointers(layout: Layout, names: Readonly<Record<string, string>>): HeaderValues {
  const values: HeaderValues = {};
  for (const [prefix, name] of Object.entries(names)) {
    const region = indexOf(layout).get(name);
    values[`${prefix}_offset`] = region?.offset ?? 0;
    values[`${prefix}_length`] = region?.length ?? 0;
  }
  return values;
}

/** By prefix of a layer's fields, the name of the region that they point to. */
export function layerPointers(layer: number): Record<string, string> {
  return Object.fromEntries(Object.entries(LAYER_POINTERS).map(([prefix, name]) => [prefix, name(layer)]));
}
/** The same for the fields of VocabEntry. */
export function vocabPointers(): Record<string, string> {
  return Object.fromEntries(Object.entries(VOCAB_POINTERS).map(([prefix, name]) => [prefix, name()]));
}

function writeLayerTable(layout: Layout, head: Uint8Array, offset: number): void {
  const layers = layout.config.layers.length;
  for (let layer = 0; layer < layers; layer++) {
    writeStruct(
      LAYER_ENTRY,
      head,
      offset + layer * LAYER_ENTRY.bytes,
      pointers(layout, layerPointers(layer)),
    );
  }
  writeStruct(VOCAB_ENTRY, head, offset + layers * LAYER_ENTRY.bytes, pointers(layout, vocabPointers()));
}

function writeGroupTable(layout: Layout, head: Uint8Array): void {
  const { offset } = named(layout, REGION.groupTable);
  for (const [index, values] of groupDescriptors(layout).entries()) {
    writeStruct(GROUP_DESCRIPTOR, head, offset + index * GROUP_DESCRIPTOR.bytes, values);
  }
}

/** What the group table of a layout must say. */
export function groupDescriptors(layout: Layout): HeaderValues[] {
  return layout.groups.map(({ firstLayer, layerCount }) => {
    const span = (names: ((layer: number) => string)[]) => {
      const regions = Array.from({ length: layerCount }, (_, i) =>
        names.map((name) => indexOf(layout).get(name(firstLayer + i))),
      )
        .flat()
        .filter((region) => region !== undefined);
      // Not Math.min(...): a group may have more regions than a call can take arguments.
      const offset = regions.reduce((least, region) => Math.min(least, region.offset), Infinity);
      const end = regions.reduce((most, region) => Math.max(most, region.offset + region.length), 0);
      return { offset, length: end - offset };
    };
    const attention = span([streamName.attention]);
    const dense = span([streamName.dense, streamName.router]);
    return {
      first_layer: firstLayer,
      layer_count: layerCount,
      reserved: 0,
      offset: attention.offset,
      length: dense.offset + dense.length - attention.offset,
      attention_offset: attention.offset,
      attention_length: attention.length,
      dense_offset: dense.offset,
      dense_length: dense.length,
    };
  });
}

/** The expert table of a layer: where each of its experts lies. */
export function encodeExpertTable(layout: Layout, layer: number): Uint8Array {
  const { count } = layout.config.layers[layer]!.experts!;
  const bytes = new Uint8Array(count * EXPERT_ENTRY.bytes);
  for (let expert = 0; expert < count; expert++) {
    const { offset, length } = named(layout, streamName.expert(layer, expert));
    writeStruct(EXPERT_ENTRY, bytes, expert * EXPERT_ENTRY.bytes, { offset, length });
  }
  return bytes;
}

/** Reads the entries of a table of `struct`s, whose `bytes` lie at `base` in the file. */
export function readTable(
  struct: Struct,
  bytes: Uint8Array,
  count: number,
  file: string,
  base: number,
): HeaderValues[] {
  return Array.from({ length: count }, (_, index) =>
    readStruct(struct, bytes, index * struct.bytes, file, base),
  );
}
