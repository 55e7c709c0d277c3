/** Files that are none, cut, padded, or damaged in a bit. */

import { guardedSource } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import { decodeStream, openModel, readTensor, regionOf } from '../src/index.js';
import { CONTAINERS, changed, fails, SOUND } from './malformed.js';

describe('what is no cflow file', () => {
  it.each([
    ['empty', 0, 'm.cflow: magic: need at least 64 bytes of header, have 0 (the file is empty or truncated)'],
    [
      'ten bytes',
      10,
      'm.cflow: magic: need at least 64 bytes of header, have 10 (the file is empty or truncated)',
    ],
  ])('%s', async (_, length, message) => {
    await fails(SOUND.cflow.bytes.slice(0, length), 'FORMAT_INVALID', message);
  });

  it('another magic', async () => {
    const bytes = new TextEncoder().encode(`WRONG${'x'.repeat(200)}`);
    const message =
      'm.cflow: magic: at byte 0: magic is "WRONGxxx", expected "CFLOW\\0\\0\\0" or "VFLOW\\0\\0\\0" (this is not a cflow file)';
    await fails(bytes, 'FORMAT_INVALID', message);
  });

  it.each([
    ['cflow', 4, 'convert the checkpoint again'],
    ['cflow', 7, 'use a newer cflow'],
    ['vflow', 4, 'convert the checkpoint again'],
    ['vflow', 7, 'use a newer cflow'],
  ] as const)('.%s of version %d', async (container, version, remedy) => {
    const message = `m.cflow: version: at byte 8: version ${version} of the format, this cflow reads versions 5 and 6 (${remedy})`;
    await fails(
      changed(container, (bytes) => (bytes[8] = version)),
      'VERSION_UNSUPPORTED',
      message,
    );
  });
});

describe.each(CONTAINERS)('.%s cut and padded', (container) => {
  const { bytes, layout } = SOUND[container];

  it('truncated at every region boundary, one byte before and after', async () => {
    const cuts = layout.regions.flatMap(({ offset }) => [offset - 1, offset, offset + 1]);
    for (const cut of [...cuts, bytes.length - 1]) {
      if (cut < 0) continue;
      const short = guardedSource(bytes.slice(0, cut));
      await expect(openModel(short), `cut at ${cut}`).rejects.toMatchObject({ code: 'FORMAT_INVALID' });
    }
  });

  it('says how many bytes there are', async () => {
    const message =
      container === 'cflow'
        ? `m.cflow: file_size: header says ${bytes.length} bytes, the file has ${bytes.length - 1} (the file is truncated or was padded; copy or convert it again)`
        : /^m\.cflow: lm_head: at byte \d+: ends at \d+, the file has \d+ bytes \(the file is truncated\)$/;
    await fails(bytes.slice(0, -1), 'FORMAT_INVALID', message);
  });

  it.each([1, 4_096])('%d bytes appended', async (extra) => {
    const longer = new Uint8Array(bytes.length + extra);
    longer.set(bytes);
    const message =
      container === 'cflow'
        ? /^m\.cflow: file_size: header says \d+ bytes, the file has \d+/
        : `m.cflow: at byte ${bytes.length}: ${extra} bytes after the last region (the file was padded or appended to)`;
    await fails(longer, 'FORMAT_INVALID', message);
  });

  it('any flipped bit of the head is found by its checksum or before', async () => {
    const table = regionOf(layout, 'layer_table');
    for (let at = 0; at < table.offset + table.length; at += 13) {
      const bad = changed(container, (copy) => (copy[at]! ^= 1 << (at & 7)));
      await expect(openModel(guardedSource(bad)), `byte ${at}`).rejects.toMatchObject({ name: 'CflowError' });
    }
  });

  it('names the checksums when only they differ', async () => {
    const { offset } = regionOf(layout, 'layer_table');
    const message =
      /^m\.cflow: head_checksum: at byte \d+: checksum of the head is [0-9a-f]{8}, the file says [0-9a-f]{8}/;
    await fails(
      changed(container, (copy) => (copy[offset]! ^= 1)),
      'VERIFY_FAILED',
      message,
    );
  });
});

describe('reading a damaged tile', () => {
  it('names the field and its place', async () => {
    const { offset, length, stream } = regionOf(SOUND.cflow.layout, 'embedding');
    const bytes = changed('cflow', (copy) => (copy[offset + 2] = 3));
    const own = bytes.subarray(offset, offset + length);
    expect(() => decodeStream(stream!, SOUND.cflow.layout, own, 'm.cflow', offset)).toThrow(
      expect.objectContaining({
        code: 'FORMAT_INVALID',
        message: `m.cflow: at byte ${offset + 2}: TileHeader.matrix_id is 3, expected 11`,
      }),
    );
  });

  it('is refused by its checksum where there is one', async () => {
    const { offset } = regionOf(SOUND.cflow.layout, 'embedding');
    const source = guardedSource(changed('cflow', (copy) => (copy[offset + 2] = 3)));
    await expect(readTensor(source, await openModel(source), 'embed_tokens.weight')).rejects.toMatchObject({
      code: 'VERIFY_FAILED',
      details: { field: 'embedding', offset },
    });
  });
});
