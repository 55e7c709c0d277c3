/** Files whose tables of streams lie. */

import { guardedSource, makeConfig, makeModel } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import { writeStruct } from '../src/file/binary.js';
import {
  EXPERT_ENTRY,
  GLOBAL_HEADER,
  type Layout,
  openModel,
  regionOf,
  VFLOW_HEADER,
  VOCAB_ENTRY,
} from '../src/index.js';
import { CONTAINERS, changed, fails, poke, SOUND, seal } from './malformed.js';

describe.each(CONTAINERS)('.%s whose tables lie', (container) => {
  /** The offset in the layer table of `field` of layer 1. */
  const entry = ({ regions }: Layout, field: number) =>
    regions.find(({ name }) => name === 'layer_table')!.offset + 64 + field;
  const lie = (field: number, value: bigint) =>
    changed(container, (bytes, layout) => {
      new DataView(bytes.buffer).setBigUint64(entry(layout, field), value, true);
      seal(bytes, layout);
    });
  const place = (name: string) => regionOf(SOUND[container].layout, name);
  const { layout } = SOUND[container];

  it('two streams at one place', async () => {
    const { offset } = place('layers.0.attention');
    const message =
      /^m\.cflow: layers\.[01]\.attention: at byte \d+: overlaps layers\.[01]\.attention, which ends at \d+$/;
    await fails(lie(0, BigInt(offset)), 'FORMAT_INVALID', message);
  });

  it('a stream not on a page', async () => {
    const { offset } = place('layers.1.attention');
    const message = `m.cflow: layers.1.attention: at byte ${offset + 1}: starts at ${offset + 1}, not a multiple of 4096`;
    await fails(lie(0, BigInt(offset + 1)), 'FORMAT_INVALID', message);
  });

  it('a wrong length', async () => {
    const { offset, length } = place('layers.1.attention');
    const message = `m.cflow: layers.1.attention: at byte ${offset}: has ${length + 1} bytes, its tensors need ${length}`;
    await fails(lie(8, BigInt(length + 1)), 'FORMAT_INVALID', message);
  });

  it('a stream beyond the end', async () => {
    await fails(lie(0, 2n ** 52n), 'FORMAT_INVALID', /^m\.cflow: .* bytes after|leaves a gap/);
  });

  it('a stream missing', async () => {
    const bytes = changed(container, (copy) => {
      copy.fill(0, entry(layout, 0), entry(layout, 16));
      seal(copy, layout);
    });
    const message = 'm.cflow: layers.1.attention: the table does not say where it is';
    await fails(bytes, 'FORMAT_INVALID', message);
  });

  it('an offset over 2^53, with its byte in the file', async () => {
    const at = entry(layout, 0);
    const message = `m.cflow: LayerEntry.attention_offset: at byte ${at}: 18446744073709551615 is over the limit of 9007199254740991`;
    await fails(lie(0, 2n ** 64n - 1n), 'LIMIT_EXCEEDED', message);
  });

  it('an expert table of another size, or somewhere else', async () => {
    const { offset } = place('layers.1.expert_table');
    const message = 'm.cflow: layers.1.expert_table: has 49 bytes, 3 experts need 48';
    await fails(lie(56, 49n), 'FORMAT_INVALID', message);
    await fails(lie(48, BigInt(offset + 8)), 'FORMAT_INVALID', /layers\.1\.experts/);
    const far = 'layers.1.expert_table: at byte 1099511627776: need 48 bytes, have 0';
    await fails(lie(48, 2n ** 40n), 'FORMAT_INVALID', new RegExp(far));
  });

  it.each([0n, 8n, 96n])('an expert table inside the head, at %d', async (offset) => {
    const message = new RegExp(
      `^m\\.cflow: layers\\.1\\.expert_table: starts at ${offset}, inside the head, which ends at \\d+$`,
    );
    await fails(lie(48, offset), 'FORMAT_INVALID', message);
  });

  it('an expert elsewhere: the expert table has no checksum in the head', async () => {
    const { offset } = place('layers.1.expert_table');
    const other = place('layers.1.experts.0');
    const bytes = changed(container, (copy) =>
      writeStruct(EXPERT_ENTRY, copy, offset + 16, { offset: other.offset, length: other.length }),
    );
    await fails(bytes, 'FORMAT_INVALID', /overlaps layers\.1\.experts\.[01], which ends at/);
  });

  it('an expert table that is all there but not on a multiple of 8', async () => {
    const { offset } = place('layers.1.expert_table');
    const bytes = changed(container, (copy) => {
      copy.copyWithin(offset + 4, offset, offset + 48);
      new DataView(copy.buffer).setBigUint64(entry(layout, 48), BigInt(offset + 4), true);
      seal(copy, layout);
    });
    const message = `m.cflow: layers.1.expert_table: at byte ${offset + 4}: starts at ${offset + 4}, not a multiple of 8`;
    await fails(bytes, 'FORMAT_INVALID', message);
  });

  it('a page that belongs to nothing', async () => {
    const { offset } = place('lm_head');
    const embedding = place('embedding');
    const { bytes } = SOUND[container];
    const longer = new Uint8Array(bytes.length + 4_096);
    longer.set(bytes);
    longer.copyWithin(offset + 4_096, offset, bytes.length);
    const vocab = place('layer_table').offset + 2 * 64;
    poke(longer, VOCAB_ENTRY, vocab, 'lm_head_offset', offset + 4_096);
    if (container === 'cflow') poke(longer, GLOBAL_HEADER, 0, 'file_size', longer.length);
    const gap = offset + 4_096 - embedding.offset - embedding.length;
    const message = `m.cflow: lm_head: at byte ${offset + 4_096}: leaves a gap of ${gap} bytes after embedding`;
    await fails(seal(longer, layout), 'FORMAT_INVALID', message);
  });

  it('experts of a layer that has none', async () => {
    const dense = await makeModel(makeConfig({ experts: 0 }), 'q4_0', container);
    new DataView(dense.bytes.buffer).setBigUint64(entry(dense.layout, 48), 4096n, true);
    const message =
      'm.cflow: layers.1.expert_table: the table points to a stream that the config does not have';
    await fails(seal(dense.bytes, dense.layout), 'FORMAT_INVALID', message);
  });
});

describe('.vflow whose groups lie', () => {
  const { bytes, layout } = SOUND.vflow;
  const group = regionOf(layout, 'group_table').offset;

  it('another span', async () => {
    const bad = bytes.slice();
    bad[group + 16]! ^= 1;
    const message = /^m\.cflow: group_table\[0\]: length is \d+, the layer table gives \d+$/;
    await fails(seal(bad, layout), 'FORMAT_INVALID', message);
  });

  it('a reserved field that is not zero', async () => {
    const bad = bytes.slice();
    bad[group + 4] = 1;
    const message = 'm.cflow: group_table[0]: reserved is 1, the layer table gives 0';
    await fails(seal(bad, layout), 'FORMAT_INVALID', message);
  });

  it.each([0, 8, 72])('a table inside header or metadata, at %d', async (offset) => {
    const bad = bytes.slice();
    poke(bad, VFLOW_HEADER, 0, 'group_table_offset', offset);
    const message = new RegExp(
      `^m\\.cflow: group_table: starts at ${offset}, inside metadata, which ends at \\d+$`,
    );
    await fails(bad, 'FORMAT_INVALID', message);
  });

  it('another count: the layer table is then looked for elsewhere', async () => {
    const bad = bytes.slice();
    poke(bad, VFLOW_HEADER, 0, 'group_count', 65_535);
    await expect(openModel(guardedSource(bad))).rejects.toMatchObject({ name: 'CflowError' });
  });
});
