/** The first tile headers of each stream, decoded. */
import {
  type ByteSource,
  DTYPES,
  type Dtype,
  MATRIX_IDS,
  type ModelFile,
  NO_EXPERT,
  readExactly,
  readTileHeader,
  type StripeId,
  streamPieces,
  stripeId,
  stripeTiles,
  TILE_HEADER_BYTES,
  wrongFields,
} from '@cflow/format';
import type { TileRow } from './schema.js';

const MATRIX_NAMES = new Map<number, string>(Object.entries(MATRIX_IDS).map(([name, id]) => [id, name]));

/** A tile, and what its header must say. */
interface Place {
  readonly offset: number;
  readonly dtype: Dtype;
  readonly id: StripeId;
  readonly rows: number;
  readonly col: number;
  readonly width: number;
}

/** Where the tiles of a stream lie. */
function* tilePlaces({ dtype, layout, streams }: ModelFile, name: string): Generator<Place> {
  const region = streams.get(name)!;
  for (const piece of streamPieces(region.stream, dtype)) {
    if (piece.kind === 'plain') continue;
    const { rows } = piece.stripe;
    const id = stripeId(piece.stripe, layout.version);
    for (const { col, width, at } of stripeTiles(piece.dtype, rows, piece.tensor.shape[1]!)) {
      yield { offset: region.offset + piece.offset + at, dtype: piece.dtype, id, rows, col, width };
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

async function readTile(source: ByteSource, stream: string, place: Place): Promise<TileRow> {
  const { offset, dtype, id } = place;
  const bytes = await readExactly(source, offset, TILE_HEADER_BYTES, stream);
  const header = readTileHeader(id.version, bytes);
  const { layer, matrixId, expert, rowOffset: row, colOffset: col, rows, cols } = header;
  return {
    stream,
    offset,
    matrix: MATRIX_NAMES.get(matrixId) ?? `unknown ${matrixId}`,
    layer,
    ...(expert === NO_EXPERT ? {} : { expert }),
    ...{ row, col, rows, cols },
    group: DTYPES[dtype].group,
    wrong: [...wrongFields(bytes, 0, place)].map(({ field }) => field),
  };
}
