import { random } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import {
  checkStripe,
  DTYPE_NAMES,
  type Dtype,
  dequantizeStripe,
  matrixBytes,
  NO_EXPERT,
  quantizeStripe,
  readTileHeader,
  stripeBytes,
  stripeTiles,
  tileBytes,
} from '../src/index.js';

const ID = { version: 5, layer: 0x0102, matrixId: 6, expert: NO_EXPERT, rowOffset: 0x00010080 } as const;
const REPORT = { scaleSearch: false };
const encode = (dtype: Dtype, values: readonly number[], rows: number, cols: number) =>
  quantizeStripe(dtype, Float32Array.from(values), rows, cols, ID, REPORT);
const hex = (bytes: Uint8Array) => Buffer.from(bytes).toString('hex');
/** Header of a tile of ID, little endian: layer, matrix, expert, row, column, rows, columns, group. */
const header = (col: string, rows: string, cols: string, group: string) =>
  `020106ff80000100${col}${rows}${cols}${group}`;

describe('sizes', () => {
  it.each([
    ['q4_0', 18_448],
    ['q8_0', 34_832],
    ['f16', 65_552],
    ['f32', 131_088],
  ] as const)('a full tile of %s has %d bytes', (dtype, bytes) => {
    expect(tileBytes(dtype, 128, 256)).toBe(bytes);
  });

  it('counts the padded last group in full', () => {
    expect(tileBytes('q4_0', 3, 33)).toBe(16 + 3 * 2 * 18);
    expect(tileBytes('q8_0', 1, 1)).toBe(16 + 34);
    expect(tileBytes('f16', 3, 33)).toBe(16 + 198);
  });

  it('adds up stripes and matrices: [300, 600] are 3 × 3 tiles', () => {
    expect(stripeBytes('q4_0', 128, 600)).toBe(2 * 18_448 + 16 + 128 * 3 * 18);
    expect(matrixBytes('f32', 300, 600)).toBe(9 * 16 + 4 * 300 * 600);
  });
});

describe('bytes of small tiles written out by hand', () => {
  it('q4_0: byte j holds element j low and j + 16 high', () => {
    const row = Array(32).fill(0);
    [row[0], row[1], row[16], row[31]] = [7, -7, 3, -1];
    const data = `bf81${'88'.repeat(13)}78`;
    expect(hex(encode('q4_0', row, 1, 32))).toBe(`${header('0000', '0100', '2000', '2000')}003c${data}`);
  });

  it('q4_0: all scales of a tile before all nibbles; the last group padded with 8', () => {
    const row = [...Array(32).fill(0), 14];
    const groups = `${'88'.repeat(16)}8f${'88'.repeat(15)}`;
    expect(hex(encode('q4_0', [...row, ...row], 2, 33))).toBe(
      `${header('0000', '0200', '2100', '2000')}${'00000040'.repeat(2)}${groups.repeat(2)}`,
    );
  });

  it('q8_0: signed bytes in order; padding 0', () => {
    expect(hex(encode('q8_0', [127, -127, 1], 1, 3))).toBe(
      `${header('0000', '0100', '0300', '2000')}003c7f8101${'00'.repeat(29)}`,
    );
  });

  it('f16 and f32: values alone, in rows', () => {
    expect(hex(encode('f16', [1, -2, 0.5, 65_504], 2, 2))).toBe(
      `${header('0000', '0200', '0200', '0100')}003c00c00038ff7b`,
    );
    expect(hex(encode('f32', [1, -2], 2, 1))).toBe(
      `${header('0000', '0200', '0100', '0100')}0000803f000000c0`,
    );
  });

  it('a row wider than 256 continues in the next tile, with its column in the header', () => {
    const bytes = encode(
      'f32',
      Array.from({ length: 2 * 257 }, (_, i) => i),
      2,
      257,
    );
    const second = bytes.subarray(tileBytes('f32', 2, 256));
    expect(hex(second)).toBe(`${header('0001', '0200', '0100', '0100')}0000804300400044`);
  });
});

describe('decoding', () => {
  it('q4_0 from bytes written by hand: w = s · (q − 8)', () => {
    const bytes = Buffer.from(`${'00'.repeat(16)}0038${'f0'}${'88'.repeat(14)}${'19'}`, 'hex');
    const expected = Array(32).fill(0);
    [expected[0], expected[16], expected[15], expected[31]] = [-4, 3.5, 0.5, -3.5];
    expect([...dequantizeStripe('q4_0', bytes, 1, 32)]).toEqual(expected);
  });

  const shapes = [
    [1, 1],
    [3, 31],
    [2, 32],
    [5, 33],
    [128, 256],
    [127, 257],
    [7, 300],
    [1, 545],
  ] as const;

  it.each(shapes)('f32 is exact and q4_0, q8_0, f16 within their step at %d × %d', (rows, cols) => {
    const next = random(rows * 1000 + cols);
    const values = Float32Array.from({ length: rows * cols }, () => next() / 2 ** 31 - 1);
    // Half a step of a scale of at most 1/7, 1/127; the scale itself is off by at most 2^-11 of the value.
    const bounds = { q4_0: 0.5 / 7 + 0.001, q8_0: 0.5 / 127 + 0.001, f16: 2 ** -12, f32: 0 };
    for (const dtype of DTYPE_NAMES) {
      const bytes = quantizeStripe(dtype, values, rows, cols, ID, REPORT);
      const back = dequantizeStripe(dtype, bytes, rows, cols);
      expect(checkStripe(dtype, bytes, rows, cols, ID)).toEqual([]);
      expect(back.length).toBe(values.length);
      expect(back.reduce((most, v, i) => Math.max(most, Math.abs(v - values[i]!)), 0)).toBeLessThanOrEqual(
        bounds[dtype],
      );
    }
  });
});

describe('what a tile cannot hold', () => {
  it.each([
    ['f32', Number.NaN],
    ['f32', Number.POSITIVE_INFINITY],
    ['q4_0', Number.NEGATIVE_INFINITY],
    ['q8_0', Number.NaN],
    ['f16', 65_520],
    ['q4_0', 458_529],
  ] as const)('%s: %d is refused with its index', (dtype, value) => {
    expect(() => encode(dtype, [0, 1, value], 1, 3)).toThrowError(
      expect.objectContaining({
        code: 'NONFINITE_WEIGHT',
        message: expect.stringContaining(`weight [65664, 2] is ${Math.fround(value)}, the largest`),
      }),
    );
  });

  it('q4_0 holds 7 · 65,504, the largest that it can', () => {
    expect(dequantizeStripe('q4_0', encode('q4_0', [458_528], 1, 1), 1, 1)[0]).toBe(458_528);
  });

  it('refuses more than 128 rows and a wrong count of values', () => {
    expect(() => encode('f32', Array(129).fill(0), 129, 1)).toThrow('a stripe of 129 × 1 does not fit');
    expect(() => encode('f32', [1, 2], 1, 3)).toThrow('a stripe of 1 × 3 does not fit');
  });
});

describe('checkStripe', () => {
  it.each([
    [0, 'layer_id is 259, expected 258'],
    [2, 'matrix_id is 7, expected 6'],
    [3, 'expert_id is 254, expected 255'],
    [4, 'row_offset is 65665, expected 65664'],
    [8, 'col_offset is 1, expected 0'],
    [10, 'tile_rows is 3, expected 2'],
    [12, 'tile_cols is 257, expected 256'],
    [14, 'quant_group is 33, expected 32'],
  ])('names the field at byte %d and its values', (offset, problem) => {
    const bytes = encode('q4_0', Array(2 * 300).fill(1), 2, 300);
    bytes[offset]! ^= 1;
    expect(checkStripe('q4_0', bytes, 2, 300, ID)).toEqual([{ offset, problem: `TileHeader.${problem}` }]);
  });

  it('finds a fault in the second tile at its place', () => {
    const bytes = encode('q4_0', Array(2 * 300).fill(1), 2, 300);
    const second = tileBytes('q4_0', 2, 256);
    bytes[second + 9] = 9;
    expect(checkStripe('q4_0', bytes, 2, 300, ID)[0]?.offset).toBe(second + 8);
  });
});

describe('tile headers of version 6', () => {
  const id = { version: 6, layer: 2, matrixId: 10, expert: 511, rowOffset: 384 } as const;
  const bytes = quantizeStripe('q4_0', new Float32Array(2 * 73_728).fill(1), 2, 73_728, id, REPORT);
  const last = 287 * tileBytes('q4_0', 2, 256);

  it('hold expert 511 and column 73,472, byte by byte', () => {
    expect(hex(bytes.subarray(last, last + 16))).toBe('0200ff0180010000001f01000a0002ff');
    expect(readTileHeader(6, bytes, last)).toEqual({
      ...{ layer: 2, matrixId: 10, expert: 511, rowOffset: 384 },
      ...{ colOffset: 73_472, rows: 2, cols: 256 },
    });
    expect(checkStripe('q4_0', bytes, 2, 73_728, id)).toEqual([]);
  });

  it.each([
    [0, 'layer_id is 3, expected 2'],
    [2, 'expert_id is 510, expected 511'],
    [4, 'row_offset is 385, expected 384'],
    [8, 'col_offset is 73473, expected 73472'],
    [12, 'matrix_id is 11, expected 10'],
    [13, 'dtype is 1, expected 0'],
    [14, 'tile_rows is 3, expected 2'],
    [15, 'last_col is 254, expected 255'],
  ])('are checked field by field: byte %d', (at, problem) => {
    const changed = bytes.slice();
    changed[last + at]! ^= 1;
    expect(checkStripe('q4_0', changed, 2, 73_728, id)).toEqual([
      { offset: last + at, problem: `TileHeader.${problem}` },
    ]);
  });

  it('differ from those of version 5 alone: the data of a tile are the same', () => {
    const values = Float32Array.from({ length: 300 }, (_, i) => i);
    const of = (version: 5 | 6) => quantizeStripe('q8_0', values, 1, 300, { ...ID, version }, REPORT);
    for (const { at, bytes: length } of stripeTiles('q8_0', 1, 300)) {
      const body = (tiles: Uint8Array) => hex(tiles.subarray(at + 16, at + length));
      expect(body(of(6))).toBe(body(of(5)));
    }
  });
});
