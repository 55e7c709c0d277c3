/** Tile dtypes. A new dtype is a row here and a codec in `tile.ts`. */
export const DTYPES = {
  /** Groups of 32: one f16 scale, 16 bytes of nibbles; w = s · (q − 8). As GGUF Q4_0. */
  q4_0: { id: 0, group: 32, scaleBytes: 2, groupBytes: 16, nominalBytes: 0.5 },
  /** Groups of 32: one f16 scale, 32 signed bytes; w = s · q. As GGUF Q8_0. */
  q8_0: { id: 1, group: 32, scaleBytes: 2, groupBytes: 32, nominalBytes: 1 },
  /** IEEE binary16, no scales. */
  f16: { id: 2, group: 1, scaleBytes: 0, groupBytes: 2, nominalBytes: 2 },
  /** IEEE binary32, no scales: the exact mode, for parity tests. */
  f32: { id: 3, group: 1, scaleBytes: 0, groupBytes: 4, nominalBytes: 4 },
} as const;

/** How the weights of a tile are stored. */
export type Dtype = keyof typeof DTYPES;
/** The dtypes, in the order of their ids. */
export const DTYPE_NAMES = Object.keys(DTYPES) as Dtype[];

/** The dtype of a tile header's quant_type; undefined for unknown ids. */
export function dtypeById(id: number): Dtype | undefined {
  return DTYPE_NAMES.find((name) => DTYPES[name].id === id);
}

/** Rows of a full tile. */
export const TILE_ROWS = 128;
/** Columns of a full tile. */
export const TILE_COLS = 256;
/** Bytes of the header in front of every tile. */
export const TILE_HEADER_BYTES = 16;
/** Streams start here, so that a direct read (O_DIRECT) needs no copy. */
export const STREAM_ALIGNMENT = 4096;

/** Bytes of one tile on disk, header included. The last group of a row is padded and counts in full. */
export function tileBytes(dtype: Dtype, rows: number, cols: number): number {
  const { group, scaleBytes, groupBytes } = DTYPES[dtype];
  return TILE_HEADER_BYTES + rows * Math.ceil(cols / group) * (scaleBytes + groupBytes);
}

/** Bytes of a whole matrix [rows, cols] in tiles. */
export function matrixBytes(dtype: Dtype, rows: number, cols: number): number {
  const rest = rows % TILE_ROWS;
  const whole = (rows - rest) / TILE_ROWS;
  return whole * stripeBytes(dtype, TILE_ROWS, cols) + (rest ? stripeBytes(dtype, rest, cols) : 0);
}

/** Bytes of one output stripe: `rows` ≤ 128 rows, all column tiles. */
export function stripeBytes(dtype: Dtype, rows: number, cols: number): number {
  const full = Math.floor(cols / TILE_COLS);
  const rest = cols % TILE_COLS;
  return full * tileBytes(dtype, rows, TILE_COLS) + (rest ? tileBytes(dtype, rows, rest) : 0);
}

/** Tiles of a stripe of `rows` × `cols`: column offset, width, and where each starts in the stripe's bytes. */
export function* stripeTiles(dtype: Dtype, rows: number, cols: number) {
  for (let col = 0, at = 0; col < cols; col += TILE_COLS) {
    const width = Math.min(TILE_COLS, cols - col);
    const bytes = tileBytes(dtype, rows, width);
    yield { col, width, at, bytes };
    at += bytes;
  }
}

/** The least multiple of `alignment` that is at least `offset`; bytes. */
export function alignUp(offset: number, alignment: number): number {
  return Math.ceil(offset / alignment) * alignment;
}
