/**
 * Scales and integers of weights that were quantized once and stored as the numbers that they mean: GGUF has no rows of
 * broken groups, so such rows are F32 there. The weights that come back are
 * the same, bit by bit, and so are the scales but where two describe the same weights.
 */
import { type Dtype, f16ToF32, f32ToF16 } from '@cflow/format';
import { rowBytes } from './blocks.js';

interface Levels {
  /** Levels that the largest weight can have, the likeliest first. */
  readonly peaks: readonly number[];
  /** Scales are never negative. */
  readonly positive?: boolean;
  readonly least: number;
  readonly most: number;
  readonly put: (block: Uint8Array, index: number, level: number) => void;
  /** Of the data of a group of zeros. */
  readonly zero: number;
}

const LEVELS: Partial<Record<Dtype, Levels>> = {
  q4_0: {
    peaks: [-8, 7, -7, 6, -6, 5, -5, 4, -4, 3, -3, 2, -2, 1, -1],
    least: -8,
    most: 7,
    zero: 0x88,
    put: (block, index, level) => {
      const at = 2 + (index & 15);
      const nibble = level + 8;
      block[at] = index < 16 ? (block[at]! & 0xf0) | nibble : (block[at]! & 0x0f) | (nibble << 4);
    },
  },
  q8_0: {
    peaks: Array.from({ length: 127 }, (_, i) => 127 - i),
    positive: true,
    least: -127,
    most: 127,
    zero: 0,
    put: (block, index, level) => {
      block[2 + index] = level & 0xff;
    },
  },
};

/** Rows of blocks, the last of each row padded; undefined if some group was never quantized to the dtype. */
export function recoverBlocks(
  dtype: Dtype,
  values: Float32Array,
  rows: number,
  cols: number,
): Uint8Array | undefined {
  const levels = LEVELS[dtype];
  if (!levels) return undefined;
  const stride = rowBytes(dtype, cols);
  const blockBytes = rowBytes(dtype, 32);
  const out = new Uint8Array(rows * stride);
  for (let row = 0; row < rows; row++) {
    for (let col = 0, at = row * stride; col < cols; col += 32, at += blockBytes) {
      const group = values.subarray(row * cols + col, row * cols + Math.min(cols, col + 32));
      if (!recoverGroup(levels, group, out.subarray(at, at + blockBytes))) return undefined;
    }
  }
  return out;
}

function recoverGroup(levels: Levels, group: Float32Array, block: Uint8Array): boolean {
  block.fill(levels.zero, 2);
  const peak = group.reduce((most, value) => (Math.abs(value) > Math.abs(most) ? value : most), 0);
  if (peak === 0) return group.every((value) => Object.is(value, 0));
  for (const level of levels.peaks) {
    const bits = f32ToF16((levels.positive ? Math.abs(peak) : peak) / level);
    const scale = f16ToF32(bits);
    if (!group.every((value) => isLevel(levels, value, scale))) continue;
    block[0] = bits & 0xff;
    block[1] = bits >> 8;
    for (const [index, value] of group.entries()) levels.put(block, index, Math.round(value / scale));
    return true;
  }
  return false;
}

function isLevel({ least, most }: Levels, value: number, scale: number): boolean {
  const level = Math.round(value / scale);
  // Of a negative scale the zeros are negative, too: they tell its sign.
  return level >= least && level <= most && Object.is(Math.fround(scale * (level + 0)), value);
}
