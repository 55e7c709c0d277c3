/** The sixteen bytes in front of every tile, of either version of the format. */

import { invalid } from '../errors.js';
import { readStruct, writeStruct } from '../file/binary.js';
import { type FormatVersion, NO_EXPERT, type Struct, TILE_HEADER, TILE_HEADER_6 } from '../file/schema.js';
import type { Stripe } from '../model/streams.js';
import { DTYPES, type Dtype, stripeTiles } from './dtype.js';

/** What the headers of a stripe's tiles say, and of which version they are. */
export interface StripeId {
  readonly version: FormatVersion;
  readonly layer: number;
  readonly matrixId: number;
  readonly expert: number;
  readonly rowOffset: number;
}

/** The id of a stripe of a tensor in a file of that version. */
export function stripeId({ tensor, matrixId, rowOffset }: Stripe, version: FormatVersion): StripeId {
  return { version, layer: tensor.layer, matrixId, expert: tensor.expert, rowOffset };
}

/** A tile of a stripe. */
interface Tile {
  readonly dtype: Dtype;
  readonly id: StripeId;
  readonly rows: number;
  readonly col: number;
  readonly width: number;
}

type Values = Readonly<Record<string, number>>;

interface HeaderKind {
  readonly struct: Struct;
  /** Fields that only this version has, or has in another form. */
  own(tile: Tile): Values;
}

const KINDS: Record<FormatVersion, HeaderKind> = {
  5: {
    struct: TILE_HEADER,
    own: ({ dtype, id, width }) => ({
      expert_id: id.expert === NO_EXPERT ? 0xff : id.expert,
      tile_cols: width,
      quant_group: DTYPES[dtype].group,
    }),
  },
  6: {
    struct: TILE_HEADER_6,
    own: ({ dtype, id, width }) => ({
      expert_id: id.expert,
      dtype: DTYPES[dtype].id,
      last_col: width - 1,
    }),
  },
};

function valuesOf(tile: Tile): Values {
  const { id, rows, col } = tile;
  return {
    layer_id: id.layer,
    matrix_id: id.matrixId,
    row_offset: id.rowOffset,
    col_offset: col,
    tile_rows: rows,
    ...KINDS[id.version].own(tile),
  };
}

/** Writes the header of every tile of a stripe; what is behind the headers stays. */
export function writeStripeHeaders(
  dtype: Dtype,
  out: Uint8Array,
  rows: number,
  cols: number,
  id: StripeId,
): void {
  const { struct } = KINDS[id.version];
  for (const { col, width, at } of stripeTiles(dtype, rows, cols))
    writeStruct(struct, out, at, valuesOf({ dtype, id, rows, col, width }));
}

/** Fields of the tile header at `at` that are not what its place demands, with their offset from `at`. */
export function* wrongFields(
  bytes: Uint8Array,
  at: number,
  tile: Tile,
): Generator<{ field: string; offset: number; actual: number; expected: number }> {
  const { struct } = KINDS[tile.id.version];
  const header = readStruct(struct, bytes, at);
  const wanted = valuesOf(tile);
  for (const { name, offset } of struct.fields) {
    const [actual, expected] = [header[name]!, wanted[name]!];
    if (actual !== expected) yield { field: name, offset, actual, expected };
  }
}

/** A tile header as it is in the file, in the terms of version 6. */
export interface TileHeaderValues {
  readonly layer: number;
  readonly matrixId: number;
  /** NO_EXPERT = none. */
  readonly expert: number;
  readonly rowOffset: number;
  readonly colOffset: number;
  readonly rows: number;
  readonly cols: number;
}

/** Decodes the tile header at `at`; nothing is checked. */
export function readTileHeader(version: FormatVersion, bytes: Uint8Array, at = 0): TileHeaderValues {
  const h = readStruct(KINDS[version].struct, bytes, at) as Record<string, number>;
  return {
    layer: h.layer_id!,
    matrixId: h.matrix_id!,
    expert: version === 5 && h.expert_id === 0xff ? NO_EXPERT : h.expert_id!,
    rowOffset: h.row_offset!,
    colOffset: h.col_offset!,
    rows: h.tile_rows!,
    cols: h.tile_cols ?? h.last_col! + 1,
  };
}

/** Checks every tile header of a stripe; returns the faults as sentences with their byte offset in the stripe. */
export function checkStripe(
  dtype: Dtype,
  bytes: Uint8Array,
  rows: number,
  cols: number,
  id: StripeId,
): { offset: number; problem: string }[] {
  const faults: { offset: number; problem: string }[] = [];
  for (const { col, width, at } of stripeTiles(dtype, rows, cols)) {
    for (const { field, offset, actual, expected } of wrongFields(bytes, at, {
      dtype,
      id,
      rows,
      col,
      width,
    })) {
      faults.push({ offset: at + offset, problem: `TileHeader.${field} is ${actual}, expected ${expected}` });
    }
  }
  return faults;
}

/** Throws on the first wrong tile header of a stripe. */
export function requireStripe(
  ...args: [...Parameters<typeof checkStripe>, file: string, base: number]
): void {
  const [dtype, bytes, rows, cols, id, file, base] = args;
  const fault = checkStripe(dtype, bytes, rows, cols, id)[0];
  if (fault) invalid(fault.problem, { file, offset: base + fault.offset });
}
