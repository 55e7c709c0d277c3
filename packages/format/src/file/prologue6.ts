/** Prologue and section table of version 6, from bytes; everything is checked before anything is believed. */

import { CflowError, invalid } from '../errors.js';
import { MAX_HEAD_BYTES, MAX_SECTIONS } from '../limits.js';
import { readStruct } from './binary.js';
import { type Crc32, crcHex } from './checksum.js';
import { TABLE_ALIGNMENT } from './layout.js';
import { HEAD_SECTIONS, SECTIONS } from './layout6.js';
import { PROLOGUE, REQUIRED_FEATURES, SECTION_ENTRY, SECTION_KINDS, type SectionKind } from './schema6.js';
import { type ByteSource, readExactly } from './source.js';

/** A section as the table has it. */
export interface Section {
  readonly kind: number;
  /** Undefined for kinds that this version does not know. */
  readonly known: SectionKind | undefined;
  readonly entryBytes: number;
  /** Where its entry begins in the file. */
  readonly entryAt: number;
  readonly offset: number;
  readonly length: number;
  readonly capacity: number;
  readonly checksum: number;
}

/** What the prologue and its table say. */
export interface Prologue {
  readonly headBytes: number;
  /** Bytes of prologue and section table. */
  readonly tableEnd: number;
  readonly sections: readonly Section[];
}

const DAMAGED = 'the file is damaged; copy or convert it again';
const KIND_NAMES = new Map(
  Object.entries(SECTION_KINDS).map(([name, id]) => [id as number, name as SectionKind]),
);

/**
 * Reads prologue and section table.
 * @throws CflowError FORMAT_INVALID, VERSION_UNSUPPORTED (required features), LIMIT_EXCEEDED, VERIFY_FAILED
 */
export async function readPrologue(source: ByteSource, crc32: Crc32): Promise<Prologue> {
  const file = source.name;
  const prologue = readStruct(
    PROLOGUE,
    await readExactly(source, 0, PROLOGUE.bytes, PROLOGUE.name),
    0,
    file,
  ) as Record<string, number>;
  requireFeatures(prologue.required_features!, file);
  if (prologue.file_size !== source.size) {
    invalid(`header says ${prologue.file_size} bytes, the file has ${source.size}`, {
      file,
      field: 'file_size',
      remedy: 'the file is truncated or was padded; copy or convert it again',
    });
  }
  const { prologue_bytes: start, section_count: count, section_entry_bytes: stride } = prologue;
  checkSizes(start!, count!, stride!, file);
  const tableEnd = start! + count! * stride!;
  const headBytes = prologue.head_bytes!;
  checkHeadBytes(headBytes, tableEnd, source);
  const table = (await readExactly(source, 0, tableEnd, 'section_table')).slice();
  checkTable(table, prologue.head_checksum!, crc32, file);
  const sections = Array.from({ length: count! }, (_, i) => section(table, start! + i * stride!, file));
  checkSections(sections, headBytes, source);
  return { headBytes, tableEnd, sections };
}

function requireFeatures(bits: number, file: string): void {
  const known = Object.values(REQUIRED_FEATURES).reduce((sum, bit) => sum | (1 << bit), 0);
  const unknown = Array.from({ length: 32 }, (_, bit) => bit).filter(
    (bit) => (bits >>> bit) & 1 && !((known >>> bit) & 1),
  );
  if (!unknown.length) return;
  throw new CflowError('VERSION_UNSUPPORTED', `needs feature ${unknown.join(', ')}, which this cflow lacks`, {
    file,
    field: 'required_features',
    value: unknown,
    remedy: 'use a newer cflow',
  });
}

function checkSizes(start: number, count: number, stride: number, file: string): void {
  const at = { file, remedy: DAMAGED };
  const sizes = [
    ['prologue_bytes', start, PROLOGUE.bytes],
    ['section_entry_bytes', stride, SECTION_ENTRY.bytes],
  ] as const;
  for (const [field, value, least] of sizes) {
    if (value < least || value % TABLE_ALIGNMENT)
      invalid(`${value} bytes, expected a multiple of ${TABLE_ALIGNMENT} from ${least} on`, { ...at, field });
  }
  if (count <= MAX_SECTIONS) return;
  throw new CflowError('LIMIT_EXCEEDED', `${count} sections, the limit is ${MAX_SECTIONS}`, {
    ...at,
    field: 'section_count',
  });
}

function checkHeadBytes(headBytes: number, tableEnd: number, { name: file, size }: ByteSource): void {
  const at = { file, field: 'head_bytes', remedy: DAMAGED };
  if (headBytes > size || headBytes < tableEnd)
    invalid(`${headBytes} bytes, expected ${tableEnd} to ${size}`, at);
  if (headBytes > MAX_HEAD_BYTES)
    throw new CflowError('LIMIT_EXCEEDED', `${headBytes} bytes, the limit is ${MAX_HEAD_BYTES}`, at);
}

/** The checksum covers prologue and section table, its own field counted as zero. */
function checkTable(table: Uint8Array, claimed: number, crc32: Crc32, file: string): void {
  const { offset } = PROLOGUE.fields.find(({ name }) => name === 'head_checksum')!;
  const copy = table.slice();
  copy.fill(0, offset, offset + 4);
  const actual = crc32(copy);
  if (actual === claimed) return;
  throw new CflowError(
    'VERIFY_FAILED',
    `checksum of the head is ${crcHex(actual)}, the file says ${crcHex(claimed)}`,
    { file, field: 'head_checksum', offset, remedy: DAMAGED },
  );
}

function section(table: Uint8Array, at: number, file: string): Section {
  const entry = readStruct(SECTION_ENTRY, table, at, file) as Record<string, number>;
  return {
    kind: entry.kind!,
    known: KIND_NAMES.get(entry.kind!),
    entryBytes: entry.entry_bytes!,
    entryAt: at,
    offset: entry.offset!,
    length: entry.length!,
    capacity: entry.capacity!,
    checksum: entry.checksum!,
  };
}

/** What an error calls a section. */
export function sectionName({ kind, known }: Pick<Section, 'kind' | 'known'>): string {
  return known ? SECTIONS[known].region : `section_${kind}`;
}

function checkSections(
  sections: readonly Section[],
  headBytes: number,
  { name: file, size }: ByteSource,
): void {
  const seen = new Set<number>();
  for (const one of sections) {
    const { kind, known, entryBytes, offset, length, capacity } = one;
    const at = { file, field: sectionName(one), offset, remedy: DAMAGED };
    if (known && seen.has(kind)) invalid('there are two of it', at);
    seen.add(kind);
    if (length > capacity) invalid(`has ${length} bytes in a place of ${capacity}`, at);
    if (offset > size || capacity > size - offset)
      invalid(`ends at ${offset + capacity}, the file has ${size} bytes`, at);
    if (!known) continue;
    const row = SECTIONS[known];
    if (isHeadSection(known) && offset + capacity > headBytes)
      invalid(`ends at ${offset + capacity}, the head has ${headBytes} bytes`, at);
    if ('entry' in row && (entryBytes < row.entry.bytes || length % entryBytes))
      invalid(
        `${length} bytes of entries of ${entryBytes}, expected entries from ${row.entry.bytes} bytes on`,
        at,
      );
  }
  const missing = [...HEAD_SECTIONS, 'settings' as const].find((kind) => !seen.has(SECTION_KINDS[kind]));
  if (missing) invalid('the file has no such section', { file, field: SECTIONS[missing].region });
}

/** Whether a section stands in front of the streams. */
export function isHeadSection(kind: SectionKind): boolean {
  return (HEAD_SECTIONS as readonly SectionKind[]).includes(kind);
}

/** @throws CflowError VERIFY_FAILED if the bytes in use of a section are not what the table says */
export function requireSection(one: Section, bytes: Uint8Array, crc32: Crc32, file: string): void {
  const actual = crc32(bytes);
  if (actual === one.checksum) return;
  throw new CflowError(
    'VERIFY_FAILED',
    `checksum is ${crcHex(actual)}, the section table says ${crcHex(one.checksum)}`,
    { file, field: sectionName(one), offset: one.offset, remedy: DAMAGED },
  );
}
