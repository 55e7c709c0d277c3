/** The first tile headers of each stream, decoded. */
import {
  type ByteSource,
  DTYPES,
  type Dtype,
  MATRIX_IDS,
  type ModelFile,
  NO_EXPERT,
  readExactly,
  readTable,
  streamPieces,
  TILE_COLS,
  TILE_HEADER,
  TILE_HEADER_BYTES,
  tileBytes,
} from '@cflow/format';
import type { TileRow } from './schema.js';

const MATRIX_NAMES = new Map<number, string>(Object.entries(MATRIX_IDS).map(([name, id]) => [id, name]));

/** Column tiles of a stripe: first column, width, first byte in the stripe, bytes. */
export function* columnTiles(dtype: Dtype, rows: number, cols: number) {
  for (let col = 0, at = 0; col < cols; col += TILE_COLS) {
    const width = Math.min(TILE_COLS, cols - col);
    const bytes = tileBytes(dtype, rows, width);
    yield { col, width, at, bytes };
    at += bytes;
  }
}

interface Place {
  readonly offset: number;
  readonly expected: Readonly<Record<string, number>>;
}

/** Where the tiles of a stream lie, and what their headers must say. */
function* tilePlaces(file: ModelFile, name: string): Generator<Place> {
  const region = file.streams.get(name)!;
  for (const piece of streamPieces(region.stream, file.dtype)) {
    if (piece.kind === 'plain') continue;
    const { tensor, stripe } = piece;
    for (const { col, width, at } of columnTiles(file.dtype, stripe.rows, tensor.shape[1]!)) {
      yield {
        offset: region.offset + piece.offset + at,
        expected: {
          layer_id: tensor.layer,
          matrix_id: stripe.matrixId,
          expert_id: tensor.expert,
          row_offset: stripe.rowOffset,
          col_offset: col,
          tile_rows: stripe.rows,
          tile_cols: width,
          quant_group: DTYPES[file.dtype].group,
        },
      };
    }
  }
}

/** The first `limit` tile headers of each stream, in file order; reads 16 bytes each. */
export async function readTiles(source: ByteSource, file: ModelFile, limit: number): Promise<TileRow[]> {
  const rows: TileRow[] = [];
  for (const name of file.streams.keys()) {
    let shown = 0;
    for (const place of tilePlaces(file, name)) {
      if (shown++ === limit) break;
      rows.push(await readTile(source, name, place));
    }
  }
  return rows;
}

async function readTile(source: ByteSource, stream: string, { offset, expected }: Place): Promise<TileRow> {
  const bytes = await readExactly(source, offset, TILE_HEADER_BYTES, stream);
  const header = readTable(TILE_HEADER, bytes, 1, source.name, offset)[0]!;
  const id = header.matrix_id!;
  return {
    stream,
    offset,
    matrix: MATRIX_NAMES.get(id) ?? `unknown ${id}`,
    layer: header.layer_id!,
    ...(header.expert_id === NO_EXPERT ? {} : { expert: header.expert_id! }),
    row: header.row_offset!,
    col: header.col_offset!,
    rows: header.tile_rows!,
    cols: header.tile_cols!,
    group: header.quant_group!,
    wrong: Object.keys(expected).filter((field) => header[field] !== expected[field]),
  };
}
