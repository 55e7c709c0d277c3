/**
 * Synthetic weights, already quantized: a pool of Gaussian groups is quantized once for each standard deviation, and
 * every tile is a range of groups at its own offset. The same tensor has the same weights in every file format.
 */
import {
  DTYPES,
  type Dtype,
  type FormatVersion,
  GROUP,
  quantizeStripe,
  type Stripe,
  stripeBytes,
  stripeId,
  stripeTiles,
  type TensorSpec,
  TILE_COLS,
  TILE_HEADER_BYTES,
  TILE_ROWS,
  writeStripeHeaders,
} from '@cflow/format';
import { randomGenerator } from '@cflow/runtime-native/internal/sampling/random.js';
import { gaussian } from './checkpoint.js';

const POOL_TILES = 64;
const TILE_VALUES = TILE_ROWS * TILE_COLS;
const POOL_VALUES = POOL_TILES * TILE_VALUES;
/** Standard deviation of biases. */
const BIAS_DEVIATION = 0.02;
const ANY = { version: 6, layer: 0, matrixId: 0, expert: 0, rowOffset: 0 } as const;

/** Groups in order: f16 scales (none for f16 and f32) and data. */
interface Pool {
  readonly scales: Uint8Array;
  readonly data: Uint8Array;
  /** The same, with each group's scale before its data, as in GGUF. */
  readonly blocks: Uint8Array;
}

/** Position of the groups of a tile in the pool. */
interface TileGroups {
  readonly pool: Pool;
  /** First group of the tile; row r starts at `+ r * perRow`. */
  readonly start: number;
  readonly perRow: number;
}

let latest: WeakRef<TileWeights> | undefined;

/** Weights of a model by tensor and position. They depend on seed and dtype, not on the order of calls. */
export class TileWeights {
  readonly dtype: Dtype;
  readonly #seed: number;
  readonly #unit: Float32Array;
  readonly #pools = new Map<number, Pool>();

  /** Reuses the pools of the latest model if dtype and seed are the same, e.g. for another file format. */
  static of(dtype: Dtype, seed: number): TileWeights {
    const last = latest?.deref();
    if (last?.dtype === dtype && last.#seed === seed) return last;
    const weights = new TileWeights(dtype, seed);
    latest = new WeakRef(weights);
    return weights;
  }

  constructor(dtype: Dtype, seed: number) {
    this.dtype = dtype;
    this.#seed = seed;
    const random = randomGenerator(seed);
    this.#unit = gaussian(POOL_VALUES, () => random.next(), 1);
  }

  /** The bytes of a stripe in the file format: tiles of `header | scales | data`. */
  stripe(stripe: Stripe, version: FormatVersion): Uint8Array {
    const { dtype } = this;
    const { tensor, rows, rowOffset } = stripe;
    const { scaleBytes, groupBytes } = DTYPES[dtype];
    const cols = tensor.shape[1]!;
    const out = new Uint8Array(stripeBytes(dtype, rows, cols));
    writeStripeHeaders(dtype, out, rows, cols, stripeId(stripe, version));
    for (const { col, width, at } of stripeTiles(dtype, rows, cols)) {
      const { pool, start, perRow } = this.#groups(tensor, rowOffset, col, width);
      const groups = rows * perRow;
      const data = at + TILE_HEADER_BYTES + groups * scaleBytes;
      out.set(slice(pool.scales, start, groups, scaleBytes), at + TILE_HEADER_BYTES);
      out.set(slice(pool.data, start, groups, groupBytes), data);
      if (width % DTYPES[dtype].group) padLastGroups(dtype, out.subarray(data), rows, perRow, width % GROUP);
    }
    return out;
  }

  /**
   * Rows of a matrix from `first`, in GGUF order: row-major, each group as `scale | data`.
   * @param rowOf maps a row of the output to a row of the tensor
   */
  rows(tensor: TensorSpec, first: number, count: number, rowOf: (row: number) => number): Uint8Array {
    const { scaleBytes, groupBytes, group } = DTYPES[this.dtype];
    const cols = tensor.shape[1]!;
    const blockBytes = scaleBytes + groupBytes;
    const out = new Uint8Array((count * cols * blockBytes) / group);
    const tiles = new Map<number, TileGroups[]>();
    for (let i = 0, at = 0; i < count; i++) {
      const row = rowOf(first + i);
      const stripe = row - (row % TILE_ROWS);
      if (!tiles.has(stripe)) tiles.set(stripe, this.#stripeGroups(tensor, stripe));
      for (const { pool, start, perRow } of tiles.get(stripe)!) {
        out.set(slice(pool.blocks, start + (row - stripe) * perRow, perRow, blockBytes), at);
        at += perRow * blockBytes;
      }
    }
    return out;
  }

  /** A tensor stored as f32: norms are 1, as initialized for training; biases and routers are Gaussian. */
  plain(tensor: TensorSpec): Float32Array {
    const count = tensor.shape.reduce((product, n) => product * n, 1);
    if (tensor.name.includes('norm')) return new Float32Array(count).fill(1);
    const deviation = tensor.shape.length > 1 ? deviationOf(tensor) : BIAS_DEVIATION;
    const from = this.#hash(tensor.name, 0, 0);
    return Float32Array.from(
      { length: count },
      (_, i) => deviation * this.#unit[(from + i) & (POOL_VALUES - 1)]!,
    );
  }

  #stripeGroups(tensor: TensorSpec, stripe: number): TileGroups[] {
    const tiles: TileGroups[] = [];
    for (let col = 0; col < tensor.shape[1]!; col += TILE_COLS) {
      tiles.push(this.#groups(tensor, stripe, col, Math.min(TILE_COLS, tensor.shape[1]! - col)));
    }
    return tiles;
  }

  #groups(tensor: TensorSpec, stripe: number, col: number, width: number): TileGroups {
    const { group } = DTYPES[this.dtype];
    const perRow = Math.ceil(width / group);
    const choices = POOL_VALUES / group - TILE_ROWS * perRow;
    const start = this.#hash(tensor.name, stripe, col) % choices;
    return { pool: this.#pool(deviationOf(tensor)), start, perRow };
  }

  #pool(deviation: number): Pool {
    const known = this.#pools.get(deviation);
    if (known) return known;
    const { scaleBytes, groupBytes, group } = DTYPES[this.dtype];
    const scales = new Uint8Array((POOL_VALUES / group) * scaleBytes);
    const data = new Uint8Array((POOL_VALUES / group) * groupBytes);
    const tileScales = scales.length / POOL_TILES;
    for (let tile = 0; tile < POOL_TILES; tile++) {
      const values = this.#unit
        .subarray(tile * TILE_VALUES, (tile + 1) * TILE_VALUES)
        .map((v) => v * deviation);
      const bytes = quantizeStripe(this.dtype, values, TILE_ROWS, TILE_COLS, ANY, { scaleSearch: false });
      scales.set(bytes.subarray(TILE_HEADER_BYTES, TILE_HEADER_BYTES + tileScales), tile * tileScales);
      data.set(bytes.subarray(TILE_HEADER_BYTES + tileScales), (tile * data.length) / POOL_TILES);
    }
    const pool = { scales, data, blocks: interleave(scales, data, scaleBytes, groupBytes) };
    this.#pools.set(deviation, pool);
    return pool;
  }

  /** 32-bit hash of tensor name and position (FNV-1a, then the finalizer of MurmurHash3). */
  #hash(name: string, row: number, col: number): number {
    let h = 0x811c9dc5 ^ this.#seed;
    for (let i = 0; i < name.length; i++) h = Math.imul(h ^ name.charCodeAt(i), 0x01000193);
    for (const n of [row, col]) h = Math.imul(h ^ n, 0x01000193);
    h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
    h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
    return (h ^ (h >>> 16)) >>> 0;
  }
}

/** Unit-variance inputs give unit-variance outputs; embeddings have unit variance. */
export function deviationOf({ matrix, shape }: TensorSpec): number {
  return matrix === 'embedding' ? 1 : 1 / Math.sqrt(shape[1]!);
}

function slice(bytes: Uint8Array, start: number, groups: number, each: number): Uint8Array {
  return bytes.subarray(start * each, (start + groups) * each);
}

/** Zeroes the padding after the `used` weights of the last group of each row: level 8 of q4_0, level 0 of q8_0. */
function padLastGroups(dtype: Dtype, data: Uint8Array, rows: number, perRow: number, used: number): void {
  const { groupBytes } = DTYPES[dtype];
  for (let row = 0; row < rows; row++) {
    const at = ((row + 1) * perRow - 1) * groupBytes;
    for (let i = used; i < GROUP; i++) {
      if (dtype === 'q8_0') data[at + i] = 0;
      else if (i < 16) data[at + i] = (data[at + i]! & 0xf0) | 8;
      else data[at + i - 16] = (data[at + i - 16]! & 0x0f) | 0x80;
    }
  }
}

/** `scale | data` of each group. */
function interleave(
  scales: Uint8Array,
  data: Uint8Array,
  scaleBytes: number,
  groupBytes: number,
): Uint8Array {
  const groups = data.length / groupBytes;
  const blockBytes = scaleBytes + groupBytes;
  const blocks = new Uint8Array(groups * blockBytes);
  for (let g = 0; g < groups; g++) {
    blocks.set(slice(scales, g, 1, scaleBytes), g * blockBytes);
    blocks.set(slice(data, g, 1, groupBytes), g * blockBytes + scaleBytes);
  }
  return blocks;
}
