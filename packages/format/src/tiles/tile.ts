/** Tiles: up to 128 × 256 weights as `header | f16 scales | data` (report §3.2). Stripes are rows of tiles. */

import { CflowError } from '../errors.js';
import { type Dtype, stripeBytes, stripeTiles, TILE_HEADER_BYTES, TILE_ROWS } from './dtype.js';
import { f16ToF32, f32ToF16 } from './f16.js';
import { GROUP, type Q4Quantizer, quantizeQ4Report, quantizeQ4Search, quantizeQ8 } from './quantize.js';
import { type StripeId, writeStripeHeaders } from './tile-header.js';

/** How weights become tiles. */
export interface QuantizeOptions {
  /** q4_0 only: search the scale (default) instead of the report's max|w| / 7. */
  readonly scaleSearch: boolean;
}

interface TileShape {
  readonly rows: number;
  readonly cols: number;
  /** Values per row of the stripe, and where the tile starts in it. */
  readonly stride: number;
  readonly from: number;
}

interface Codec {
  /** Writes scales and data of one tile behind its header. */
  encode(values: Float32Array, tile: TileShape, out: Uint8Array, options: QuantizeOptions): void;
  decode(bytes: Uint8Array, tile: TileShape, out: Float32Array): void;
}

function view(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** Calls `visit(start in the stripe, length, index)` for every group of 32 of the tile, row by row. */
function eachGroup(
  { rows, cols, stride, from }: TileShape,
  visit: (at: number, n: number, index: number) => void,
): number {
  const groups = Math.ceil(cols / GROUP);
  for (let row = 0; row < rows; row++) {
    for (let g = 0; g < groups; g++) {
      visit(row * stride + from + g * GROUP, Math.min(GROUP, cols - g * GROUP), row * groups + g);
    }
  }
  return rows * groups;
}

const q4: Codec = {
  encode(values, tile, out, { scaleSearch }) {
    const quantize: Q4Quantizer = scaleSearch ? quantizeQ4Search : quantizeQ4Report;
    const q = new Uint8Array(GROUP);
    const scales = view(out);
    const data = 2 * tile.rows * Math.ceil(tile.cols / GROUP);
    eachGroup(tile, (at, n, index) => {
      scales.setUint16(2 * index, quantize(values, at, n, q), true);
      const base = data + 16 * index;
      for (let j = 0; j < 16; j++) out[base + j] = q[j]! | (q[j + 16]! << 4);
    });
  },
  decode(bytes, tile, out) {
    const scales = view(bytes);
    const data = 2 * tile.rows * Math.ceil(tile.cols / GROUP);
    eachGroup(tile, (at, n, index) => {
      const scale = f16ToF32(scales.getUint16(2 * index, true));
      const base = data + 16 * index;
      for (let i = 0; i < n; i++) {
        const byte = bytes[base + (i & 15)]!;
        out[at + i] = scale * ((i < 16 ? byte & 15 : byte >> 4) - 8);
      }
    });
  },
};

const q8: Codec = {
  encode(values, tile, out) {
    const q = new Int8Array(GROUP);
    const bytes = new Uint8Array(q.buffer);
    const scales = view(out);
    const data = 2 * tile.rows * Math.ceil(tile.cols / GROUP);
    eachGroup(tile, (at, n, index) => {
      scales.setUint16(2 * index, quantizeQ8(values, at, n, q), true);
      out.set(bytes, data + GROUP * index);
    });
  },
  decode(bytes, tile, out) {
    const v = view(bytes);
    const data = 2 * tile.rows * Math.ceil(tile.cols / GROUP);
    eachGroup(tile, (at, n, index) => {
      const scale = f16ToF32(v.getUint16(2 * index, true));
      for (let i = 0; i < n; i++) out[at + i] = scale * v.getInt8(data + GROUP * index + i);
    });
  },
};

/** Codec of a dtype that stores each value by itself. */
function plain(
  bytesEach: number,
  set: (v: DataView, at: number, value: number) => void,
  get: (v: DataView, at: number) => number,
): Codec {
  return {
    encode(values, { rows, cols, stride, from }, out) {
      const v = view(out);
      for (let row = 0, at = 0; row < rows; row++) {
        for (let col = 0; col < cols; col++, at += bytesEach) set(v, at, values[row * stride + from + col]!);
      }
    },
    decode(bytes, { rows, cols, stride, from }, out) {
      const v = view(bytes);
      for (let row = 0, at = 0; row < rows; row++) {
        for (let col = 0; col < cols; col++, at += bytesEach) out[row * stride + from + col] = get(v, at);
      }
    },
  };
}

const CODECS: Record<Dtype, Codec> = {
  q4_0: q4,
  q8_0: q8,
  f16: plain(
    2,
    (v, at, value) => v.setUint16(at, f32ToF16(value), true),
    (v, at) => f16ToF32(v.getUint16(at, true)),
  ),
  f32: plain(
    4,
    (v, at, value) => v.setFloat32(at, value, true),
    (v, at) => v.getFloat32(at, true),
  ),
};

/**
 * Bytes of one output stripe: `values` is [rows, cols] row-major, rows ≤ 128.
 * @throws CflowError NONFINITE_WEIGHT for NaN, Inf and what the dtype cannot hold
 */
export function quantizeStripe(
  dtype: Dtype,
  values: Float32Array,
  rows: number,
  cols: number,
  id: StripeId,
  options: QuantizeOptions,
): Uint8Array {
  if (rows > TILE_ROWS || values.length !== rows * cols)
    throw new Error(`a stripe of ${rows} × ${cols} does not fit`);
  checkRange(dtype, values, cols, id);
  const out = new Uint8Array(stripeBytes(dtype, rows, cols));
  writeStripeHeaders(dtype, out, rows, cols, id);
  for (const { col, width, at, bytes } of stripeTiles(dtype, rows, cols)) {
    const body = out.subarray(at + TILE_HEADER_BYTES, at + bytes);
    CODECS[dtype].encode(values, { rows, cols: width, stride: cols, from: col }, body, options);
  }
  return out;
}

/** Largest magnitude that each dtype can hold, given that its scale or value is an f16. */
const LARGEST: Record<Dtype, number> = {
  q4_0: 65_504 * 7,
  q8_0: 65_504 * 127,
  f16: 65_519,
  f32: Number.MAX_VALUE,
};

function checkRange(dtype: Dtype, values: Float32Array, cols: number, { rowOffset }: StripeId): void {
  const limit = LARGEST[dtype];
  for (let i = 0; i < values.length; i++) {
    if (!(Math.abs(values[i]!) <= limit)) {
      throw new CflowError(
        'NONFINITE_WEIGHT',
        `weight [${rowOffset + Math.floor(i / cols)}, ${i % cols}] is ${values[i]}, the largest ${dtype} is ${limit}`,
        {
          remedy: 'use --dtype f32, or --allow-nonfinite zero for NaN and Inf',
        },
      );
    }
  }
}

/** The inverse of `quantizeStripe`: [rows, cols] row-major. Headers are not looked at; see `checkStripe`. */
export function dequantizeStripe(dtype: Dtype, bytes: Uint8Array, rows: number, cols: number): Float32Array {
  const out = new Float32Array(rows * cols);
  for (const { col, width, at, bytes: length } of stripeTiles(dtype, rows, cols)) {
    const body = bytes.subarray(at + TILE_HEADER_BYTES, at + length);
    CODECS[dtype].decode(body, { rows, cols: width, stride: cols, from: col }, out);
  }
  return out;
}
