/** Opening a file: every claim of the head is checked against the bytes before it is believed. */

import { CflowError, invalid } from '../errors.js';
import { MAX_LAYERS, MAX_METADATA_BYTES } from '../limits.js';
import type { ModelConfig } from '../model/config.js';
import { modelStreams, type Stream, streamBytes } from '../model/streams.js';
import { DTYPES, type Dtype, dtypeById, TILE_COLS, TILE_ROWS } from '../tiles/dtype.js';
import { readStruct } from './binary.js';
import { type Crc32, crcHex, crc32 as portableCrc32 } from './checksum.js';
import { cover } from './cover.js';
import {
  configFields,
  configFromHeader,
  groupDescriptors,
  type HeaderValues,
  identify,
  layerPointers,
  readTable,
  vocabPointers,
} from './head.js';
import { checkStreamCount, HEADERS, REGION, streamIndex, TABLE_ALIGNMENT, verticalGroups } from './layout.js';
import type { Container, Layout, ModelFile, Region, RegionKind } from './layout-types.js';
import { decodeMetadata, type Metadata } from './metadata.js';
import { openModel6 } from './reader6.js';
import { EXPERT_ENTRY, GROUP_DESCRIPTOR, LAYER_ENTRY, VERSION, VOCAB_ENTRY } from './schema.js';
import { type ByteSource, readExactly } from './source.js';
import { beyondInWords, beyondVersion5 } from './version5.js';

/** How a file is opened. */
export interface OpenOptions {
  readonly crc32?: Crc32;
  /** false: of version 6, tokenizer and settings stay unread, and the file opens with two reads. Default true. */
  readonly documents?: boolean;
}

/**
 * Reads and checks header, metadata and tables; no weights.
 * @throws CflowError FORMAT_INVALID, VERSION_UNSUPPORTED, CONFIG_INVALID, LIMIT_EXCEEDED, VERIFY_FAILED
 */
export async function openModel(
  source: ByteSource,
  { crc32 = portableCrc32, documents = true }: OpenOptions = {},
): Promise<ModelFile> {
  const first = await source.read(0, Math.min(source.size, HEADERS.cflow.bytes));
  const { container, version } = identify(first, source.name);
  return version === 6
    ? openModel6(source, container, { crc32, documents })
    : openModel5(source, container, crc32);
}

async function openModel5(source: ByteSource, container: Container, crc32: Crc32): Promise<ModelFile> {
  const file = source.name;
  const struct = HEADERS[container];
  const header = readStruct(struct, await readExactly(source, 0, struct.bytes, struct.name), 0, file);
  const dtype = checkTiles(header, file);
  if (container === 'cflow' && header.file_size !== source.size) {
    invalid(`header says ${header.file_size} bytes, the file has ${source.size}`, {
      file,
      field: 'file_size',
      remedy: 'the file is truncated or was padded; copy or convert it again',
    });
  }
  checkLayerCount(header, source);
  const metadata = await readMetadata(source, header, container);
  const config = metadata?.config ?? configFromHeader(header, file);
  const beyond = beyondVersion5(config);
  if (beyond)
    throw new CflowError('CONFIG_INVALID', beyondInWords(beyond), { file, field: 'metadata.config' });
  compareFields(configFields(config), header, file, metadata ? CONTRADICTION : NEEDS_METADATA);
  checkStreamCount(config, file);
  const tables = tableRegions(header, container, config);
  checkTablePlace(tables, header, struct.bytes, file);
  await checkHead(source, tables.layerTable, struct.bytes, container, header.head_checksum!, crc32);
  const layout = await readLayout(source, { container, dtype, config, header, tables });
  const known = metadata ?? withoutMetadata(config);
  if (metadata) checkChecksumNames(layout, metadata, file);
  return { container, dtype, config, metadata: known, layout, streams: streamIndex(layout) };
}

/** Before a config of so many layers is built: a small file cannot hold the table of many. */
function checkLayerCount({ num_layers: layers }: HeaderValues, { name: file, size }: ByteSource): void {
  const bytes = layers! * LAYER_ENTRY.bytes;
  if (bytes > size) {
    invalid(`${layers} layers need a table of ${bytes} bytes, the file has ${size}`, {
      file,
      field: 'num_layers',
    });
  }
}

function withoutMetadata(config: ModelConfig): Metadata {
  return {
    config,
    source: { name: 'unknown', files: [] },
    converter: { version: 'unknown', options: {} },
    checksums: {},
  };
}

function checkTiles(header: HeaderValues, file: string): Dtype {
  const dtype = dtypeById(header.quant_type!);
  if (!dtype)
    invalid(`${header.quant_type} is no tile dtype, known are 0 to 3`, { file, field: 'quant_type' });
  const expected: HeaderValues = { quant_group: DTYPES[dtype].group };
  if ('tile_rows' in header) Object.assign(expected, { tile_rows: TILE_ROWS, tile_cols: TILE_COLS });
  compareFields(expected, header, file, 'the file is damaged; convert it again');
  return dtype;
}

const CONTRADICTION = 'header and metadata contradict each other; convert the checkpoint again';
const NEEDS_METADATA = "a model that differs from the report's needs metadata; convert the checkpoint again";

function compareFields(expected: HeaderValues, header: HeaderValues, file: string, remedy: string): void {
  const wrong = Object.keys(expected).filter((name) => expected[name] !== header[name]);
  if (!wrong.length) return;
  invalid(wrong.map((name) => `${name} is ${header[name]}, expected ${expected[name]}`).join('; '), {
    file,
    field: 'header',
    remedy,
  });
}

async function readMetadata(
  source: ByteSource,
  header: HeaderValues,
  container: Container,
): Promise<Metadata | undefined> {
  const { metadata_offset: offset, metadata_length: length } = header as {
    metadata_offset: number;
    metadata_length: number;
  };
  const at = { file: source.name, field: 'metadata', offset };
  if (length === 0) return offset === 0 ? undefined : invalid(`no bytes at ${offset}, expected offset 0`, at);
  if (length > MAX_METADATA_BYTES) {
    throw new CflowError('LIMIT_EXCEEDED', `${length} bytes, the limit is ${MAX_METADATA_BYTES}`, at);
  }
  if (offset !== HEADERS[container].bytes)
    invalid(`starts at ${offset}, expected ${HEADERS[container].bytes}`, at);
  return decodeMetadata(await readExactly(source, offset, length, 'metadata'), source.name);
}

interface Tables {
  readonly layerTable: Region;
  readonly groupTable?: Region;
}

function tableRegions(header: HeaderValues, container: Container, config: ModelConfig): Tables {
  const length = Math.min(config.layers.length, MAX_LAYERS) * LAYER_ENTRY.bytes + VOCAB_ENTRY.bytes;
  const at = (name: string, kind: RegionKind, offset: number, bytes: number): Region => ({
    name,
    kind,
    offset,
    length: bytes,
  });
  if (container === 'cflow')
    return { layerTable: at(REGION.layerTable, 'layerTable', header.layer_table_offset!, length) };
  const groupBytes = header.group_count! * GROUP_DESCRIPTOR.bytes;
  const groupOffset = header.group_table_offset!;
  const layerOffset = Math.ceil((groupOffset + groupBytes) / TABLE_ALIGNMENT) * TABLE_ALIGNMENT;
  return {
    groupTable: at(REGION.groupTable, 'groupTable', groupOffset, groupBytes),
    layerTable: at(REGION.layerTable, 'layerTable', layerOffset, length),
  };
}

/** A table in the middle of header or metadata would be read as whatever stands there. */
function checkTablePlace(
  { groupTable, layerTable }: Tables,
  { metadata_offset: offset, metadata_length: length }: HeaderValues,
  headerBytes: number,
  file: string,
): void {
  const first = groupTable ?? layerTable;
  const end = length ? offset! + length : headerBytes;
  if (first.offset >= end) return;
  invalid(`starts at ${first.offset}, inside ${length ? 'metadata' : 'header'}, which ends at ${end}`, {
    file,
    field: first.name,
  });
}

/** The head checksum covers every byte up to the end of the layer table, its own field counted as zero. */
async function checkHead(
  source: ByteSource,
  { offset, length }: Region,
  headerBytes: number,
  container: Container,
  claimed: number,
  crc32: Crc32,
): Promise<void> {
  const limit = MAX_METADATA_BYTES + 64 * 1024 * 1024;
  if (offset < headerBytes || offset + length > limit) {
    invalid(`layer table at ${offset} with ${length} bytes is outside the head`, {
      file: source.name,
      field: REGION.layerTable,
    });
  }
  const head = (await readExactly(source, 0, offset + length, REGION.layerTable)).slice();
  const field = HEADERS[container].fields.find(({ name }) => name === 'head_checksum')!;
  head.fill(0, field.offset, field.offset + 4);
  const actual = crc32(head);
  if (actual !== claimed) {
    throw new CflowError(
      'VERIFY_FAILED',
      `checksum of the head is ${crcHex(actual)}, the file says ${crcHex(claimed)}`,
      {
        file: source.name,
        field: 'head_checksum',
        offset: field.offset,
        remedy: 'the file is damaged; copy or convert it again',
      },
    );
  }
}

interface Head {
  readonly container: Container;
  readonly dtype: Dtype;
  readonly config: ModelConfig;
  readonly header: HeaderValues;
  readonly tables: Tables;
}

/** Collects the regions that the tables name, and checks that with padding they cover the file exactly once. */
async function readLayout(source: ByteSource, head: Head): Promise<Layout> {
  const { container, dtype, config, header, tables } = head;
  const file = source.name;
  const found = new Map<string, { offset: number; length: number }>();
  const table = await readExactly(
    source,
    tables.layerTable.offset,
    tables.layerTable.length,
    REGION.layerTable,
  );
  const layers = config.layers.length;
  const entries = readTable(LAYER_ENTRY, table, layers, file, tables.layerTable.offset);
  for (const [layer, entry] of entries.entries()) collect(found, entry, layerPointers(layer));
  const vocab = readStruct(VOCAB_ENTRY, table, layers * LAYER_ENTRY.bytes, file, tables.layerTable.offset);
  collect(found, vocab, vocabPointers());
  const headEnd = tables.layerTable.offset + tables.layerTable.length;
  const expertTables = await readExpertTables(source, config, found, headEnd);

  const streams = modelStreams(config);
  const regions: Region[] = [
    { name: REGION.header, kind: 'header', offset: 0, length: HEADERS[container].bytes },
    ...(header.metadata_length
      ? [
          {
            name: REGION.metadata,
            kind: 'metadata' as const,
            offset: header.metadata_offset!,
            length: header.metadata_length,
          },
        ]
      : []),
    ...(tables.groupTable ? [tables.groupTable] : []),
    tables.layerTable,
    ...expertTables,
    ...streams.map((stream) => streamRegion(stream, dtype, found.get(stream.name), file)),
  ];
  const known = new Set(regions.map(({ name }) => name));
  for (const name of found.keys()) {
    if (!known.has(name))
      invalid('the table points to a stream that the config does not have', { file, field: name });
  }
  const layout: Layout = {
    version: VERSION,
    container,
    dtype,
    config,
    regions: cover(regions, source.size, file),
    groups: container === 'vflow' ? verticalGroups(config) : [],
    fileBytes: source.size,
  };
  if (tables.groupTable) await checkGroups(source, layout, tables.groupTable);
  return layout;
}

function collect(
  found: Map<string, { offset: number; length: number }>,
  entry: HeaderValues,
  names: Readonly<Record<string, string>>,
): void {
  for (const [prefix, name] of Object.entries(names)) {
    const offset = entry[`${prefix}_offset`]!;
    const length = entry[`${prefix}_length`]!;
    if (offset || length) found.set(name, { offset, length });
  }
}

async function readExpertTables(
  source: ByteSource,
  config: ModelConfig,
  found: Map<string, { offset: number; length: number }>,
  headEnd: number,
): Promise<Region[]> {
  const regions: Region[] = [];
  for (const [layer, { experts }] of config.layers.entries()) {
    if (!experts) continue;
    const name = REGION.expertTable(layer);
    const place = found.get(name);
    const length = experts.count * EXPERT_ENTRY.bytes;
    if (place?.length !== length) {
      invalid(`has ${place?.length ?? 0} bytes, ${experts.count} experts need ${length}`, {
        file: source.name,
        field: name,
      });
    }
    if (place.offset < headEnd) {
      invalid(`starts at ${place.offset}, inside the head, which ends at ${headEnd}`, {
        file: source.name,
        field: name,
      });
    }
    const bytes = await readExactly(source, place.offset, length, name);
    const entries = readTable(EXPERT_ENTRY, bytes, experts.count, source.name, place.offset);
    for (const [expert, entry] of entries.entries()) {
      found.set(`layers.${layer}.experts.${expert}`, { offset: entry.offset!, length: entry.length! });
    }
    regions.push({ name, kind: 'expertTable', offset: place.offset, length, layer });
  }
  return regions;
}

function streamRegion(
  stream: Stream,
  dtype: Dtype,
  place: { offset: number; length: number } | undefined,
  file: string,
): Region {
  const at = { file, field: stream.name };
  if (!place) invalid('the table does not say where it is', at);
  const expected = streamBytes(stream, dtype);
  if (place.length !== expected)
    invalid(`has ${place.length} bytes, its tensors need ${expected}`, { ...at, offset: place.offset });
  return { name: stream.name, kind: 'stream', offset: place.offset, length: place.length, stream };
}

async function checkGroups(source: ByteSource, layout: Layout, { offset, length }: Region): Promise<void> {
  const field = REGION.groupTable;
  const expected = groupDescriptors(layout);
  const count = length / GROUP_DESCRIPTOR.bytes;
  if (count !== expected.length) {
    invalid(`${count} groups, the attention geometry makes ${expected.length}`, { file: source.name, field });
  }
  const entries = readTable(
    GROUP_DESCRIPTOR,
    await readExactly(source, offset, length, field),
    count,
    source.name,
    offset,
  );
  for (const [index, entry] of entries.entries()) {
    for (const { name } of GROUP_DESCRIPTOR.fields) {
      const want = expected[index]![name];
      if (entry[name] !== want) {
        invalid(`${name} is ${entry[name]}, the layer table gives ${want}`, {
          file: source.name,
          field: `${field}[${index}]`,
        });
      }
    }
  }
}

/** Regions that carry a checksum in the metadata: streams and expert tables. */
export function checksummed(layout: Layout): Region[] {
  return layout.regions.filter(({ kind }) => kind === 'stream' || kind === 'expertTable');
}

function checkChecksumNames(layout: Layout, { checksums }: Metadata, file: string): void {
  const names = new Set(checksummed(layout).map(({ name }) => name));
  const missing = [...names].find((name) => !Object.hasOwn(checksums, name));
  const surplus = Object.keys(checksums).find((name) => !names.has(name));
  if (missing) invalid(`no checksum for ${missing}`, { file, field: 'metadata.checksums' });
  if (surplus)
    invalid(`checksum for ${surplus}, which the file does not have`, { file, field: 'metadata.checksums' });
}
