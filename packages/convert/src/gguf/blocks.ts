/**
 * Rows of GGUF blocks and stripes of tiles hold the same bits in another order: a block is `scale | data`, a tile has
 * all its scales before all its data. Nothing is quantized here.
 */
import {
  DTYPES,
  type Dtype,
  type StripeId,
  stripeBytes,
  stripeTiles,
  TILE_HEADER_BYTES,
  writeStripeHeaders,
} from '@cflow/format';

/** Bytes of a row of `cols` weights in blocks, the last one padded. */
export function rowBytes(dtype: Dtype, cols: number): number {
  const { group, scaleBytes, groupBytes } = DTYPES[dtype];
  return Math.ceil(cols / group) * (scaleBytes + groupBytes);
}

/** Whether GGUF can hold rows of `cols` weights in the dtype: it knows whole groups only. */
export function wholeGroups(dtype: Dtype, cols: number): boolean {
  return cols % DTYPES[dtype].group === 0;
}

/** Copies a run of groups between `scales` and `data` of a tile and the blocks of a row. */
type Move = (
  tile: Uint8Array,
  scales: number,
  data: number,
  row: Uint8Array,
  block: number,
  groups: number,
) => void;

function moves(dtype: Dtype, toBlocks: boolean): Move {
  const { scaleBytes, groupBytes } = DTYPES[dtype];
  if (scaleBytes === 0) {
    return (tile, _, data, row, block, groups) => {
      const length = groups * groupBytes;
      if (toBlocks) row.set(tile.subarray(data, data + length), block);
      else tile.set(row.subarray(block, block + length), data);
    };
  }
  return (tile, scales, data, row, block, groups) => {
    const copy = toBlocks
      ? (inTile: number, inRow: number) => {
          row[inRow] = tile[inTile]!;
        }
      : (inTile: number, inRow: number) => {
          tile[inTile] = row[inRow]!;
        };
    for (let g = 0, at = block; g < groups; g++) {
      for (let i = 0; i < scaleBytes; i++) copy(scales + g * scaleBytes + i, at++);
      for (let i = 0; i < groupBytes; i++) copy(data + g * groupBytes + i, at++);
    }
  };
}

function moveStripe(
  dtype: Dtype,
  stripe: Uint8Array,
  blocks: Uint8Array,
  [rows, cols]: readonly [number, number],
  move: Move,
): void {
  const { group, scaleBytes, groupBytes } = DTYPES[dtype];
  const stride = rowBytes(dtype, cols);
  for (const { col, width, at } of stripeTiles(dtype, rows, cols)) {
    const perRow = Math.ceil(width / group);
    const scales = at + TILE_HEADER_BYTES;
    const data = scales + rows * perRow * scaleBytes;
    const inRow = rowBytes(dtype, col);
    for (let row = 0; row < rows; row++) {
      const first = row * perRow;
      move(
        stripe,
        scales + first * scaleBytes,
        data + first * groupBytes,
        blocks,
        row * stride + inRow,
        perRow,
      );
    }
  }
}

/** The rows of a stripe as GGUF has them; tile headers are not looked at. */
export function stripeToBlocks(dtype: Dtype, stripe: Uint8Array, rows: number, cols: number): Uint8Array {
  const blocks = new Uint8Array(rows * rowBytes(dtype, cols));
  moveStripe(dtype, stripe, blocks, [rows, cols], moves(dtype, true));
  return blocks;
}

/** The inverse: a stripe of tiles, headers included, of rows as GGUF has them. */
export function blocksToStripe(
  dtype: Dtype,
  blocks: Uint8Array,
  rows: number,
  cols: number,
  id: StripeId,
): Uint8Array {
  const stripe = new Uint8Array(stripeBytes(dtype, rows, cols));
  writeStripeHeaders(dtype, stripe, rows, cols, id);
  moveStripe(dtype, stripe, blocks, [rows, cols], moves(dtype, false));
  return stripe;
}
