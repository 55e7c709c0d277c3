/** Opening a file of version 6: prologue, head in one read, documents. The index is compared with what the config demands. */

import { CflowError, invalid } from '../errors.js';
import type { ModelConfig } from '../model/config.js';
import {
  modelStreams,
  type Stream,
  streamBytes,
  streamTensors,
  type TensorSpec,
  withDtypes,
} from '../model/streams.js';
import { type Dtype, dtypeById } from '../tiles/dtype.js';
import { readStruct } from './binary.js';
import { type Crc32, crcHex } from './checksum.js';
import { cover } from './cover.js';
import { decodeHeadDocument, decodeTail } from './documents6.js';
import { type IndexRow, streamRow, tensorRows } from './index6.js';
import { checkStreamCount, REGION, streamIndex, verticalGroups } from './layout.js';
import type { Container, Layout, ModelFile, Region } from './layout-types.js';
import { SECTIONS } from './layout6.js';
import {
  isHeadSection,
  type Prologue,
  readPrologue,
  requireSection,
  type Section,
  sectionName,
} from './prologue6.js';
import type { Struct } from './schema.js';
import { type SectionKind, STREAM_ENTRY, TENSOR_ENTRY } from './schema6.js';
import { type ByteSource, readExactly } from './source.js';

/** What is read of a file. */
export interface OpenOptions6 {
  readonly crc32: Crc32;
  /** false: tokenizer and settings stay unread; the file then opens with one read behind the prologue. */
  readonly documents: boolean;
}

/** @throws CflowError FORMAT_INVALID, VERSION_UNSUPPORTED, CONFIG_INVALID, LIMIT_EXCEEDED, VERIFY_FAILED */
export async function openModel6(
  source: ByteSource,
  container: Container,
  { crc32, documents }: OpenOptions6,
): Promise<ModelFile> {
  const file = source.name;
  const prologue = await readPrologue(source, crc32);
  const head = await readExactly(source, 0, prologue.headBytes, 'head');
  const contents = headContents(head, prologue, crc32, file);
  const { config, ...origin } = decodeHeadDocument(contents.metadata, file);
  checkStreamCount(config, file);
  const index = readIndex(config, contents, file);
  const regions = [
    { name: REGION.header, kind: 'header' as const, offset: 0, length: prologue.tableEnd },
    ...prologue.sections.map(sectionRegion),
    ...index.streams,
  ];
  const layout: Layout = {
    version: 6,
    container,
    dtype: index.dtype,
    config,
    regions: cover(regions, source.size, file),
    groups: container === 'vflow' ? verticalGroups(config) : [],
    fileBytes: source.size,
  };
  const tail = documents ? await readTail(source, prologue, crc32) : {};
  const { checksums } = index;
  const metadata = { config, ...decodeTail(tail, file), ...origin, checksums };
  return { container, dtype: index.dtype, config, metadata, layout, streams: streamIndex(layout) };
}

type HeadContents = Record<'metadata' | 'names' | 'streams' | 'tensors', Uint8Array> & {
  /** Bytes of an entry of each table. */
  readonly strides: { readonly streams: number; readonly tensors: number };
};

function headContents(head: Uint8Array, { sections }: Prologue, crc32: Crc32, file: string): HeadContents {
  const found: Partial<Record<SectionKind, Section>> = {};
  const bytesOf = (kind: SectionKind) => {
    const { offset, length } = found[kind]!;
    return head.subarray(offset, offset + length);
  };
  for (const section of sections) {
    if (!section.known || !isHeadSection(section.known)) continue;
    found[section.known] = section;
    requireSection(section, bytesOf(section.known), crc32, file);
  }
  return {
    metadata: bytesOf('metadata'),
    names: bytesOf('names'),
    streams: bytesOf('streams'),
    tensors: bytesOf('tensors'),
    strides: { streams: found.streams!.entryBytes, tensors: found.tensors!.entryBytes },
  };
}

function sectionRegion(section: Section): Region {
  const { known, offset, length, capacity: bytes, checksum } = section;
  const kind = known ? SECTIONS[known].kind : ('other' as const);
  const used = { length, checksum };
  return { name: sectionName(section), kind, offset, length: bytes, used };
}

async function readTail(source: ByteSource, { sections }: Prologue, crc32: Crc32) {
  const tail: { tokenizer?: Uint8Array; settings?: Uint8Array } = {};
  for (const section of sections) {
    const { known, offset, length } = section;
    if (known !== 'tokenizer' && known !== 'settings') continue;
    const bytes = await readExactly(source, offset, length, known);
    requireSection(section, bytes, crc32, source.name);
    tail[known] = bytes;
  }
  return tail;
}

interface Row {
  readonly name: string;
  readonly values: Readonly<Record<string, number>>;
}

/** Rows of a table, with the names that they point to. */
function readRows(struct: Struct, bytes: Uint8Array, stride: number, names: string, file: string): Row[] {
  return Array.from({ length: bytes.length / stride }, (_, index) => {
    const values = readStruct(struct, bytes, index * stride, file) as Record<string, number>;
    const at = values.name_offset!;
    return { values, name: names.slice(at, at + values.name_length!) };
  });
}

/** @throws CflowError FORMAT_INVALID if a row is not `expected`, which has the fields that the configuration gives */
function requireRow(actual: Row, expected: IndexRow, table: string, index: number, file: string): void {
  const at = () => ({ file, field: `${table}[${index}]` });
  if (actual.name !== expected.name)
    invalid(
      `is ${JSON.stringify(actual.name)}, the configuration has ${JSON.stringify(expected.name)}`,
      at(),
    );
  for (const field in expected.values) {
    const value = expected.values[field];
    if (actual.values[field] !== value)
      invalid(`${expected.name}: ${field} is ${actual.values[field]}, expected ${value}`, at());
  }
}

interface FoundIndex {
  readonly dtype: Dtype;
  readonly streams: Region[];
  readonly checksums: Record<string, string>;
}

/** Dtypes and places come from the tables; every other field must be what the configuration gives. */
function readIndex(config: ModelConfig, contents: HeadContents, file: string): FoundIndex {
  const names = new TextDecoder('latin1').decode(contents.names);
  const { strides } = contents;
  const plain = modelStreams(config);
  const tensors = plain.flatMap(streamTensors);
  const streamRows = readRows(STREAM_ENTRY, contents.streams, strides.streams, names, file);
  const rows = readRows(TENSOR_ENTRY, contents.tensors, strides.tensors, names, file);
  requireCount('streams', streamRows, plain, file);
  requireCount('tensors', rows, tensors, file);
  const dtypes = new Map(tensors.map((tensor, i) => [tensor, dtypeOf(tensor, rows[i]!, file)]));
  const dtype = dtypes.get(tensors.find(({ matrix }) => matrix)!)!;
  const streams: Region[] = [];
  const checksums: Record<string, string> = {};
  let next = 0;
  for (const [index, one] of plain.entries()) {
    const stream = withDtypes(one, dtype, (tensor) => dtypes.get(tensor)!);
    const actual = streamRows[index]!;
    const own = tensorRows(stream, index, dtype);
    requireRow(actual, streamRow(stream, next, own.length), SECTIONS.streams.region, index, file);
    for (const row of own) requireRow(rows[next]!, row, SECTIONS.tensors.region, next++, file);
    streams.push(placed(stream, dtype, actual.values, file));
    checksums[stream.name] = crcHex(actual.values.checksum!);
  }
  return { dtype, streams, checksums };
}

function requireCount(
  kind: 'streams' | 'tensors',
  { length: actual }: readonly unknown[],
  { length: expected }: readonly unknown[],
  file: string,
): void {
  if (actual === expected) return;
  invalid(`has ${actual} entries, the configuration ${expected} ${kind}`, {
    file,
    field: SECTIONS[kind].region,
  });
}

function dtypeOf({ name }: TensorSpec, { values }: Row, file: string): Dtype {
  const dtype = dtypeById(values.dtype!);
  if (dtype) return dtype;
  throw new CflowError('UNSUPPORTED', `dtype ${values.dtype} is none that this cflow reads`, {
    file,
    field: name,
    remedy: 'use a newer cflow',
  });
}

function placed(stream: Stream, dtype: Dtype, { offset, length }: Row['values'], file: string): Region {
  const expected = streamBytes(stream, dtype);
  if (length !== expected) {
    const at = { file, field: stream.name, offset: offset! };
    invalid(`has ${length} bytes, its tensors need ${expected}`, at);
  }
  return { name: stream.name, kind: 'stream', offset: offset!, length: expected, stream };
}
