/** Where every byte of a file lies: a pure function of the model, the dtype and the container. */

import { CflowError } from '../errors.js';
import { MAX_FILE_BYTES, MAX_STREAMS } from '../limits.js';
import type { ModelConfig } from '../model/config.js';
import { layerStreams, type Stream, streamBytes, vocabStreams } from '../model/streams.js';
import { alignUp, type Dtype, STREAM_ALIGNMENT } from '../tiles/dtype.js';
import type { Container, Layout, ModelFile, Region, RegionKind, VerticalGroup } from './layout-types.js';
import {
  EXPERT_ENTRY,
  GLOBAL_HEADER,
  GROUP_DESCRIPTOR,
  LAYER_ENTRY,
  VERSION,
  VFLOW_HEADER,
  VOCAB_ENTRY,
} from './schema.js';

/** Tables start on a multiple of this, so that their u64 fields are aligned. */
export const TABLE_ALIGNMENT = 8;

/** The first struct of each container. */
export const HEADERS = {
  cflow: GLOBAL_HEADER,
  vflow: VFLOW_HEADER,
} as const;

/** The layer table's name in `Layout.regions`. */
export const REGION = {
  header: 'header',
  metadata: 'metadata',
  groupTable: 'group_table',
  layerTable: 'layer_table',
  expertTable: (layer: number) => `layers.${layer}.expert_table`,
  padding: (offset: number) => `padding@${offset}`,
} as const;

/**
 * Lays out a file: head (header, metadata, tables), then the streams in the order of their container.
 * @param metadataBytes length of the JSON document, which is fixed before any weight is written
 * @throws CflowError LIMIT_EXCEEDED if the file would be larger than 2^53 − 1 bytes
 */
export function planLayout(
  config: ModelConfig,
  dtype: Dtype,
  container: Container,
  metadataBytes: number,
): Layout {
  checkStreamCount(config);
  const regions = new RegionList();
  const groups = container === 'vflow' ? verticalGroups(config) : [];
  regions.add(REGION.header, 'header', HEADERS[container].bytes);
  if (metadataBytes) regions.add(REGION.metadata, 'metadata', metadataBytes);
  if (container === 'vflow') {
    regions.align(TABLE_ALIGNMENT);
    regions.add(REGION.groupTable, 'groupTable', groups.length * GROUP_DESCRIPTOR.bytes);
  }
  regions.align(TABLE_ALIGNMENT);
  regions.add(REGION.layerTable, 'layerTable', config.layers.length * LAYER_ENTRY.bytes + VOCAB_ENTRY.bytes);
  for (const item of bodyOrder(config, container, groups)) {
    if (item.kind === 'expertTable') {
      regions.align(TABLE_ALIGNMENT);
      regions.add(REGION.expertTable(item.layer), 'expertTable', item.experts * EXPERT_ENTRY.bytes, {
        layer: item.layer,
      });
    } else {
      regions.align(STREAM_ALIGNMENT);
      regions.add(item.stream.name, 'stream', streamBytes(item.stream, dtype), { stream: item.stream });
    }
  }
  return {
    version: VERSION,
    container,
    dtype,
    config,
    regions: regions.list,
    groups,
    fileBytes: regions.size(),
  };
}

/** Before anything is built: a small hostile config can claim sixteen million experts. */
export function checkStreamCount(config: ModelConfig, file?: string): void {
  const streams = config.layers.reduce((sum, { experts }) => sum + 3 + (experts?.count ?? 0), 3);
  if (streams > MAX_STREAMS) {
    throw new CflowError('LIMIT_EXCEEDED', `${streams} streams, the limit is ${MAX_STREAMS}`, {
      file,
      field: 'config.layers',
    });
  }
}

/** Regions in file order, without gaps. */
export class RegionList {
  readonly list: Region[] = [];
  end = 0;

  /** Appends a region. */
  add(name: string, kind: RegionKind, length: number, extra: Pick<Region, 'stream' | 'layer'> = {}): void {
    this.list.push({ name, kind, offset: this.end, length, ...extra });
    this.end += length;
  }

  /** @throws CflowError LIMIT_EXCEEDED if the file would be larger than 2^53 − 1 bytes */
  size(): number {
    if (this.end <= MAX_FILE_BYTES) return this.end;
    throw new CflowError(
      'LIMIT_EXCEEDED',
      `the file would have ${this.end} bytes, the limit is ${MAX_FILE_BYTES}`,
    );
  }

  /** Appends padding up to a multiple of `alignment`. */
  align(alignment: number): void {
    const length = alignUp(this.end, alignment) - this.end;
    if (length) this.add(REGION.padding(this.end), 'padding', length);
  }
}

/** Streams and expert tables in the order of their container. */
export function bodyOrder(
  config: ModelConfig,
  container: Container,
  groups: readonly VerticalGroup[],
): Generator<Item> {
  return container === 'cflow' ? layerMajor(config) : stageMajor(config, groups);
}

type Item = { kind: 'stream'; stream: Stream } | { kind: 'expertTable'; layer: number; experts: number };

/** Streams of a layer by what they are. */
function split(config: ModelConfig, layer: number) {
  const streams = layerStreams(config, config.layers[layer]!, layer);
  const of = (kind: Stream['kind']): Item[] =>
    streams.filter((stream) => stream.kind === kind).map((stream) => ({ kind: 'stream', stream }));
  const experts = config.layers[layer]!.experts?.count ?? 0;
  const table: Item[] = experts ? [{ kind: 'expertTable', layer, experts }] : [];
  return {
    attention: of('attention'),
    dense: of('dense'),
    router: of('router'),
    table,
    experts: of('expert'),
  };
}

function vocab(config: ModelConfig): Item[] {
  return vocabStreams(config).map((stream) => ({ kind: 'stream', stream }));
}

/**
 * .cflow, report §3.3.2 and §3.10.2: slot by slot; the dense stream of layer ℓ stands in slot ℓ − δd and its experts in
 * slot ℓ − δe, where the delayed schedule fetches them. Slots below 0 collect in slot 0.
 */
function* layerMajor(config: ModelConfig): Generator<Item> {
  const layers = config.layers.map((_, layer) => split(config, layer));
  const inSlot = (slot: number, delay: number) =>
    slot === 0 ? layers.slice(0, delay + 1) : layers.slice(slot + delay, slot + delay + 1);
  for (const [slot, own] of layers.entries()) {
    yield* own.attention;
    for (const layer of inSlot(slot, config.denseDelay)) yield* layer.dense;
    yield* own.router;
    yield* own.table;
    for (const layer of inSlot(slot, config.expertDelay)) yield* layer.experts;
  }
  yield* vocab(config);
}

/** .vflow, report §3.4.2: per group the attention stage, then the dense stage; then the expert bank; vocabulary last. */
function* stageMajor(config: ModelConfig, groups: readonly VerticalGroup[]): Generator<Item> {
  const layers = config.layers.map((_, layer) => split(config, layer));
  for (const { firstLayer, layerCount } of groups) {
    const own = layers.slice(firstLayer, firstLayer + layerCount);
    for (const { attention } of own) yield* attention;
    for (const { dense, router } of own) yield* [...dense, ...router];
  }
  for (const { table } of layers) yield* table;
  for (const { experts } of layers) yield* experts;
  yield* vocab(config);
}

/** Consecutive layers of one attention geometry form a group (report §3.4.1). */
export function verticalGroups(config: ModelConfig): VerticalGroup[] {
  const groups: { firstLayer: number; layerCount: number }[] = [];
  let previous = '';
  for (const [layer, { attention }] of config.layers.entries()) {
    const geometry = JSON.stringify(attention);
    if (geometry === previous) groups.at(-1)!.layerCount++;
    else groups.push({ firstLayer: layer, layerCount: 1 });
    previous = geometry;
  }
  return groups;
}

/** The region of that name; a missing one is a defect of the caller. */
export function regionOf(layout: Layout, name: string): Region {
  const region = layout.regions.find((candidate) => candidate.name === name);
  if (!region) throw new Error(`no region ${name}`);
  return region;
}

/** The streams of a layout by name. */
export function streamIndex(layout: Layout): ModelFile['streams'] {
  const index = new Map<string, Region & { readonly stream: Stream }>();
  for (const region of layout.regions) {
    if (region.stream) index.set(region.name, region as Region & { readonly stream: Stream });
  }
  return index;
}
