/** Replacing the settings of a file of version 6 in place: written into the slack, then one write changes the head. */

import type { z } from 'zod';
import { CflowError } from '../errors.js';
import { readStruct, writeStruct } from './binary.js';
import { type Crc32, crc32 as portableCrc32 } from './checksum.js';
import { decodeSettings, encodeSettings, type settingsDocumentSchema } from './documents6.js';
import { identify } from './head.js';
import { sealHead } from './head6.js';
import { type Prologue, readPrologue, requireSection, type Section } from './prologue6.js';
import { PROLOGUE, SECTION_ENTRY } from './schema6.js';
import { type ByteSource, readExactly } from './source.js';

/** What may be replaced in place: chat template, sampling defaults, extensions. */
export type Settings = z.infer<typeof settingsDocumentSchema>;

/** Bytes to write at an offset. */
export interface Write {
  readonly offset: number;
  readonly bytes: Uint8Array;
}

/**
 * The writes that replace the settings, in order; each must be on the disk before the next begins. Until the last one, of
 * less than a sector's 512 bytes for files as they are written here, the file has its old settings; behind it the new ones.
 * @throws CflowError UNSUPPORTED for version 5, LIMIT_EXCEEDED if the slack is too small, and as openModel
 */
export async function planSettings(
  source: ByteSource,
  change: (settings: Settings) => Settings,
  crc32: Crc32 = portableCrc32,
): Promise<readonly [document: Write, head: Write]> {
  const file = source.name;
  const { version } = identify(await readExactly(source, 0, PROLOGUE.bytes, PROLOGUE.name), file);
  if (version !== 6) {
    throw new CflowError('UNSUPPORTED', `version ${version} of the format has no room for changes`, {
      file,
      remedy: 'lay it out as version 6 first: cflow-convert FILE NEW --format-version 6',
    });
  }
  const prologue = await readPrologue(source, crc32);
  const [settings, slack] = [find(prologue, 'settings'), find(prologue, 'slack')];
  if (!settings || !slack)
    throw new CflowError('UNSUPPORTED', 'the file has no slack', { file, field: 'slack' });
  const old = await readExactly(source, settings.offset, settings.length, 'settings');
  requireSection(settings, old, crc32, file);
  const changed = JSON.stringify(change(decodeSettings(old, file)));
  // Through its own check: what was put in may be no setting.
  const bytes = encodeSettings(decodeSettings(new TextEncoder().encode(changed), file));
  if (bytes.length > slack.capacity) {
    throw new CflowError(
      'LIMIT_EXCEEDED',
      `${bytes.length} bytes of settings, the slack has ${slack.capacity}`,
      {
        file,
        field: 'settings',
        value: bytes.length,
        limit: slack.capacity,
        remedy: 'lay the file out anew, which makes room in proportion to its settings',
      },
    );
  }
  const head = (await readExactly(source, 0, prologue.tableEnd, 'section_table')).slice();
  moveSection(head, settings, { at: slack, length: bytes.length, checksum: crc32(bytes) });
  moveSection(head, slack, { at: settings, length: 0, checksum: crc32(new Uint8Array(0)) });
  sealHead(head, crc32);
  return [
    { offset: slack.offset, bytes },
    { offset: 0, bytes: head },
  ];
}

/** Gives a section the place of another; what its entry has beyond the fields of this version stays. */
function moveSection(
  head: Uint8Array,
  section: Section,
  { at, length, checksum }: { readonly at: Section; readonly length: number; readonly checksum: number },
): void {
  const { offset, capacity } = at;
  const values = readStruct(SECTION_ENTRY, head, section.entryAt);
  writeStruct(SECTION_ENTRY, head, section.entryAt, { ...values, offset, capacity, length, checksum });
}

function find({ sections }: Prologue, kind: 'settings' | 'slack'): Section | undefined {
  return sections.find(({ known }) => known === kind);
}
