/** Heads of version 6 that are wrong: each check by name, then mutants of every byte. */

import { guardedSource, makeConfig, makeModel, random } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import {
  CflowError,
  crc32,
  type ErrorCode,
  openModel,
  PROLOGUE,
  SECTION_ENTRY,
  STREAM_ENTRY,
  type Struct,
  TENSOR_ENTRY,
} from '../src/index.js';
import { poke } from './malformed.js';

const MADE = await makeModel(makeConfig({ layers: 2, denseDelay: 1 }), 'q4_0', 'cflow', { version: 6 });
const SECTIONS = ['metadata', 'names', 'stream_table', 'tensor_table', 'settings', 'slack'];
const region = (name: string) => MADE.layout.regions.find((one) => one.name === name)!;
const entryAt = (section: string) => PROLOGUE.bytes + SECTIONS.indexOf(section) * SECTION_ENTRY.bytes;
const TABLE_END = PROLOGUE.bytes + SECTIONS.length * SECTION_ENTRY.bytes;

/** Checksums made right again, so that the checks behind them are the ones tested. */
function seal(bytes: Uint8Array): Uint8Array {
  for (const name of SECTIONS.slice(0, 4)) {
    const { offset, length } = region(name);
    poke(bytes, SECTION_ENTRY, entryAt(name), 'checksum', crc32(bytes.subarray(offset, offset + length)));
  }
  return sealTable(bytes);
}

function sealTable(bytes: Uint8Array): Uint8Array {
  poke(bytes, PROLOGUE, 0, 'head_checksum', 0);
  poke(bytes, PROLOGUE, 0, 'head_checksum', crc32(bytes.subarray(0, TABLE_END)));
  return bytes;
}

type Change = readonly [struct: Struct, base: number, field: string, value: number];
const changed = ([struct, base, field, value]: Change, sealed = seal) => {
  const bytes = MADE.bytes.slice();
  poke(bytes, struct, base, field, value);
  return sealed(bytes);
};

async function fails(bytes: Uint8Array, code: ErrorCode, message: string): Promise<void> {
  await expect(openModel(guardedSource(bytes))).rejects.toMatchObject({
    name: 'CflowError',
    code,
    message: expect.stringContaining(message),
  });
}

describe('a prologue', () => {
  const at = (field: string, value: number): Change => [PROLOGUE, 0, field, value];

  it.each([
    ['version', 7, 'VERSION_UNSUPPORTED', 'version 7 of the format, this cflow reads versions 5 and 6'],
    ['required_features', 0x80000002, 'VERSION_UNSUPPORTED', 'needs feature 1, 31, which this cflow lacks'],
    ['file_size', 1, 'FORMAT_INVALID', 'header says 1 bytes, the file has'],
    ['head_bytes', 8, 'FORMAT_INVALID', 'head_bytes: 8 bytes, expected'],
    ['head_bytes', 2 ** 40, 'FORMAT_INVALID', 'head_bytes: 1099511627776 bytes, expected'],
    ['section_count', 65, 'LIMIT_EXCEEDED', 'section_count: 65 sections, the limit is 64'],
    ['section_count', 2, 'VERIFY_FAILED', 'checksum of the head'],
    ['section_entry_bytes', 32, 'FORMAT_INVALID', '32 bytes, expected a multiple of 8 from 40 on'],
    ['prologue_bytes', 49, 'FORMAT_INVALID', '49 bytes, expected a multiple of 8 from 48 on'],
  ] as const)('%s = %d', async (field, value, code, message) => {
    await fails(changed(at(field, value)), code, message);
  });

  it('unknown compatible features are ignored', async () => {
    const bytes = changed(at('compatible_features', 0xffffffff));
    expect((await openModel(guardedSource(bytes))).layout.version).toBe(6);
  });
});

describe('a section table', () => {
  const at = (section: string, field: string, value: number): Change => [
    SECTION_ENTRY,
    entryAt(section),
    field,
    value,
  ];

  it.each([
    [at('names', 'kind', 3), 'FORMAT_INVALID', 'stream_table: at byte'],
    [at('names', 'kind', 99), 'FORMAT_INVALID', 'names: the file has no such section'],
    [at('names', 'length', 2 ** 40), 'FORMAT_INVALID', 'names: at byte'],
    [at('settings', 'capacity', 2 ** 40), 'FORMAT_INVALID', 'settings: at byte'],
    [at('metadata', 'offset', 0), 'VERIFY_FAILED', 'metadata: at byte 0: checksum is'],
    [at('stream_table', 'entry_bytes', 40), 'FORMAT_INVALID', 'expected entries from 48 bytes on'],
    [at('tensor_table', 'entry_bytes', 52), 'FORMAT_INVALID', 'bytes of entries of 52'],
    [at('names', 'checksum', 1), 'VERIFY_FAILED', 'names: at byte'],
    [at('slack', 'capacity', 8), 'FORMAT_INVALID', 'bytes after the last region'],
  ] as const)('%#: %s', async (change, code, message) => {
    await fails(changed(change, sealTable), code, message);
  });

  it('passes over sections that it does not know, and their bytes are verified', async () => {
    const bytes = changed(at('slack', 'kind', 4242), sealTable);
    const file = await openModel(guardedSource(bytes));
    expect(file.layout.regions.at(-1)).toMatchObject({ name: 'section_4242', kind: 'other' });
  });
});

describe('an index', () => {
  const stream = (index: number, field: string, value: number): Change => [
    STREAM_ENTRY,
    region('stream_table').offset + index * STREAM_ENTRY.bytes,
    field,
    value,
  ];
  const tensor = (index: number, field: string, value: number): Change => [
    TENSOR_ENTRY,
    region('tensor_table').offset + index * TENSOR_ENTRY.bytes,
    field,
    value,
  ];

  it.each([
    [stream(1, 'kind', 0), 'FORMAT_INVALID', 'layers.0.dense: kind is 0, expected 1'],
    [stream(1, 'layer', 1), 'FORMAT_INVALID', 'layers.0.dense: layer is 1, expected 0'],
    [stream(3, 'expert', 0xffff), 'FORMAT_INVALID', 'layers.0.experts.0: expert is 65535, expected 0'],
    [stream(1, 'first_tensor', 0), 'FORMAT_INVALID', 'first_tensor is 0'],
    [stream(1, 'length', 8), 'FORMAT_INVALID', 'layers.0.dense: at byte'],
    [stream(1, 'offset', 0), 'FORMAT_INVALID', 'layers.0.dense: at byte 0: overlaps header'],
    [stream(1, 'offset', 4097), 'FORMAT_INVALID', 'layers.0.dense'],
    [stream(1, 'name_offset', 1), 'FORMAT_INVALID', 'stream_table[1]: is "'],
    [tensor(0, 'name_length', 3), 'FORMAT_INVALID', 'tensor_table[0]: is "lay"'],
    [tensor(0, 'dtype', 0), 'FORMAT_INVALID', 'layers.0.attn_norm.weight: dtype is 0, expected 3'],
    [
      tensor(1, 'dtype', 200),
      'UNSUPPORTED',
      'layers.0.attn.q_proj.weight: dtype 200 is none that this cflow reads',
    ],
    [tensor(1, 'dtype', 1), 'FORMAT_INVALID', 'tensor_table[1]: layers.0.attn.q_proj.weight: length is'],
    [tensor(1, 'matrix_id', 255), 'FORMAT_INVALID', 'matrix_id is 255, expected 0'],
    [tensor(1, 'rank', 3), 'FORMAT_INVALID', 'rank is 3, expected 2'],
    [tensor(1, 'dim_1', 41), 'FORMAT_INVALID', 'dim_1 is 41, expected 40'],
    [tensor(2, 'offset', 0), 'FORMAT_INVALID', 'offset is 0, expected'],
  ] as const)('%#: %s', async (change, code, message) => {
    await fails(changed(change), code, message);
  });
});

it('20,000 mutants of the head: opened, or refused with a typed error', async () => {
  const next = random(7);
  const headEnd = region('tensor_table').offset + region('tensor_table').length;
  for (let i = 0; i < 20_000; i++) {
    const bytes = MADE.bytes.slice();
    const changes = 1 + (next() % 3);
    // Half of them in prologue and section table, whose few bytes decide most.
    const span = next() % 2 ? TABLE_END : headEnd;
    for (let c = 0; c < changes; c++)
      bytes[next() % span] = [0, 1, 0x7f, 0x80, 0xff, next() & 255][next() % 6]!;
    const mutant = next() % 4 ? seal(bytes) : bytes;
    const error = await openModel(guardedSource(mutant)).then(
      () => undefined,
      (cause: unknown) => cause,
    );
    if (error && !(error instanceof CflowError && error.code !== 'INTERNAL')) throw error;
  }
}, 120_000);
