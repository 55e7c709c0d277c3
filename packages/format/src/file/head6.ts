/** The head of version 6 as bytes: prologue, section table and the sections in front of the streams. */

import { writeStruct } from './binary.js';
import { type Crc32, crc32 as portableCrc32 } from './checksum.js';
import { MAGICS } from './head.js';
import type { Layout, Region } from './layout-types.js';
import { HEAD_SECTIONS, SECTIONS } from './layout6.js';
import { PROLOGUE, SECTION_ENTRY, SECTION_KINDS, type SectionKind } from './schema6.js';

/** The bytes in use of each section that a file has. */
export type SectionContents = Partial<Record<SectionKind, Uint8Array>>;

const KIND_OF_REGION = new Map(
  Object.entries(SECTIONS).map(([kind, { region }]) => [region as string, kind as SectionKind]),
);

/** The sections of a layout with their regions, in file order. */
export function sectionsOf(layout: Layout): { readonly kind: SectionKind; readonly region: Region }[] {
  return layout.regions.flatMap((region) => {
    const kind = region.stream ? undefined : KIND_OF_REGION.get(region.name);
    return kind ? [{ kind, region }] : [];
  });
}

/** Bytes 0 to the end of the last section in front of the streams. */
export function encodeHead6(
  layout: Layout,
  contents: SectionContents,
  crc32: Crc32 = portableCrc32,
): Uint8Array {
  const sections = sectionsOf(layout);
  const last = sections[HEAD_SECTIONS.length - 1]!.region;
  const head = new Uint8Array(last.offset + last.length);
  for (const [index, { kind, region }] of sections.entries()) {
    const bytes = contents[kind] ?? new Uint8Array(0);
    const { offset, length: capacity } = region;
    const section = SECTIONS[kind];
    if (offset < head.length) head.set(bytes, offset);
    writeStruct(SECTION_ENTRY, head, PROLOGUE.bytes + index * SECTION_ENTRY.bytes, {
      kind: SECTION_KINDS[kind],
      entry_bytes: 'entry' in section ? section.entry.bytes : 0,
      ...{ offset, length: bytes.length, capacity },
      checksum: crc32(bytes),
      reserved: 0,
    });
  }
  const prologue = {
    magic: MAGICS[layout.container],
    version: layout.version,
    head_bytes: head.length,
    file_size: layout.fileBytes,
    ...{ required_features: 0, compatible_features: 0 },
    ...{ prologue_bytes: PROLOGUE.bytes, section_count: sections.length },
    ...{ section_entry_bytes: SECTION_ENTRY.bytes, reserved: 0 },
  };
  writeStruct(PROLOGUE, head, 0, { ...prologue, head_checksum: 0 });
  sealHead(head.subarray(0, PROLOGUE.bytes + sections.length * SECTION_ENTRY.bytes), crc32);
  return head;
}

/** Fills in the checksum of prologue and section table, which are all of `table`. */
export function sealHead(table: Uint8Array, crc32: Crc32): void {
  const { offset } = PROLOGUE.fields.find(({ name }) => name === 'head_checksum')!;
  const view = new DataView(table.buffer, table.byteOffset, table.byteLength);
  view.setUint32(offset, 0, true);
  view.setUint32(offset, crc32(table), true);
}
