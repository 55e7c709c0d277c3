import { makeBareModel, makeConfig } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import { readStruct, writeStruct } from '../src/file/binary.js';
import {
  EXPERT_ENTRY,
  GLOBAL_HEADER,
  GROUP_DESCRIPTOR,
  LAYER_ENTRY,
  STRUCTS,
  type Struct,
  TILE_HEADER,
  VFLOW_HEADER,
  VOCAB_ENTRY,
} from '../src/index.js';

const offsets = ({ fields }: Struct) => Object.fromEntries(fields.map(({ name, offset }) => [name, offset]));

describe('binary layouts', () => {
  it.each([
    [GLOBAL_HEADER, 88],
    [VFLOW_HEADER, 64],
    [TILE_HEADER, 16],
    [EXPERT_ENTRY, 16],
    [GROUP_DESCRIPTOR, 56],
    [LAYER_ENTRY, 64],
    [VOCAB_ENTRY, 48],
  ] as const)('$name has its size', (struct, bytes) => {
    expect(struct.bytes).toBe(bytes);
  });

  it('GlobalHeader: the last eight bytes are the delays, style, flags and soft-cap', () => {
    expect(offsets(GLOBAL_HEADER)).toMatchObject({
      magic: 0,
      version: 8,
      hidden_dim: 12,
      num_layers: 16,
      vocab_size: 32,
      layer_table_offset: 48,
      head_checksum: 68,
      file_size: 72,
      dense_delay: 80,
      expert_delay: 81,
      combine_style: 82,
      feature_flags: 83,
      final_logit_softcap: 84,
    });
  });

  it('VFlowHeader: the same eight bytes end it', () => {
    expect(offsets(VFLOW_HEADER)).toMatchObject({ version: 8, dense_delay: 56, final_logit_softcap: 60 });
  });

  it('TileHeader is the table of the report', () => {
    expect(offsets(TILE_HEADER)).toEqual({
      layer_id: 0,
      matrix_id: 2,
      expert_id: 3,
      row_offset: 4,
      col_offset: 8,
      tile_rows: 10,
      tile_cols: 12,
      quant_group: 14,
    });
  });

  it('u64 fields are aligned in every struct', () => {
    const odd = STRUCTS.flatMap((s) => s.fields.filter(({ type, offset }) => type === 'u64' && offset % 8));
    expect(odd).toEqual([]);
  });
});

describe('a header in a file', () => {
  const config = makeConfig({ layers: 3, denseDelay: 1, expertDelay: 2, rich: true });
  const { bytes, layout } = makeBareModel({ ...config, name: 'x' }, 'q8_0', 'cflow');
  const view = new DataView(bytes.buffer);

  it('.cflow: values at the offsets of the table, little endian', () => {
    expect(Buffer.from(bytes.subarray(0, 12)).toString('latin1')).toBe('CFLOW\0\0\0\x05\0\0\0');
    expect([view.getUint32(12, true), view.getUint16(16, true), view.getUint16(18, true)]).toEqual([
      40, 3, 4,
    ]);
    expect([...bytes.subarray(20, 22), view.getUint16(22, true)]).toEqual([2, 2, 8]);
    expect(view.getBigUint64(72, true)).toBe(BigInt(layout.fileBytes));
    expect([...bytes.subarray(80, 84)]).toEqual([1, 2, 1, 3]);
    expect(view.getFloat32(84, true)).toBe(Math.fround(30.1));
  });

  it('.vflow: the same eight bytes at 56', () => {
    const { bytes: v } = makeBareModel(config, 'q4_0', 'vflow');
    expect(Buffer.from(v.subarray(0, 9)).toString('latin1')).toBe('VFLOW\0\0\0\x05');
    expect([...v.subarray(56, 60)]).toEqual([1, 2, 1, 3]);
  });
});

describe('readStruct and writeStruct', () => {
  it('refuse a u64 over 2^53 − 1 and name the field', () => {
    const bytes = new Uint8Array(16);
    new DataView(bytes.buffer).setBigUint64(8, 2n ** 53n, true);
    expect(() => readStruct(EXPERT_ENTRY, bytes, 0, 'm.cflow')).toThrowError(
      expect.objectContaining({
        code: 'LIMIT_EXCEEDED',
        message:
          'm.cflow: ExpertEntry.length: at byte 8: 9007199254740992 is over the limit of 9007199254740991',
      }),
    );
  });

  it('refuse a value that the field cannot hold', () => {
    const values = { layer_id: 65_536, matrix_id: 0, expert_id: 0, row_offset: 0 };
    const rest = { col_offset: 0, tile_rows: 0, tile_cols: 0, quant_group: 0 };
    expect(() => writeStruct(TILE_HEADER, new Uint8Array(16), 0, { ...values, ...rest })).toThrowError(
      expect.objectContaining({ code: 'LIMIT_EXCEEDED', details: { field: 'TileHeader.layer_id' } }),
    );
  });
});
