/** Rows of a model's tensor out of the stored tensor that holds it: by itself, in a fused one, transposed, or scaled. */
import { type ByteSource, CflowError } from '@cflow/format';
import type { TensorPlace } from '../families/index.js';
import { type RowRange, type SafetensorsEntry, tensorRowRange, tensorRowsF32 } from './safetensors.js';

interface Stored {
  readonly source: ByteSource;
  readonly entry: SafetensorsEntry;
}

/** Scales of a tensor: one for each block of rows and columns. */
export interface BlockScales {
  readonly stored: Stored;
  readonly block: readonly [number, number];
}

export class PlacedTensor {
  readonly #place: TensorPlace;
  readonly #stored: Stored;
  readonly #scales: BlockScales | undefined;
  #values: Promise<Float32Array> | undefined;

  constructor(place: TensorPlace, stored: Stored, scales?: BlockScales) {
    this.#place = place;
    this.#stored = { source: stored.source, entry: asRows(stored.entry) };
    this.#scales = scales;
  }

  /** Where the rows lie, if they lie there as they are. */
  range(rowStart: number, rows: number): RowRange | undefined {
    const { row, transposed, offset } = this.#place;
    if (transposed || offset || this.#scales) return undefined;
    const { source, entry } = this.#stored;
    return tensorRowRange(source, entry, row + rowStart, rows);
  }

  /**
   * @param shape of the model's tensor
   * @returns rows × (elements of one row) values
   */
  async rowsF32(
    shape: readonly number[],
    rowStart: number,
    rows: number,
    slabs: Slabs,
  ): Promise<Float32Array> {
    const { row, transposed, offset } = this.#place;
    const { source, entry } = this.#stored;
    if (transposed) {
      const slab = await slabs.read(this.#stored, row, shape[1]!);
      return columns(slab, shape[1]!, transposed.column + rowStart, rows);
    }
    const values = await tensorRowsF32(source, entry, row + rowStart, rows);
    if (offset) for (let i = 0; i < values.length; i++) values[i] = values[i]! + offset;
    if (this.#scales) await this.#scale(values, row + rowStart, rows);
    return values;
  }

  /** Multiplies rows from `first` on, of the stored tensor seen as rows, by the scales of their blocks. */
  async #scale(values: Float32Array, first: number, rows: number): Promise<void> {
    const { stored, block } = this.#scales!;
    const [blockRows, blockCols] = block;
    const matrix = asRows(stored.entry);
    this.#values ??= tensorRowsF32(stored.source, matrix, 0, matrix.shape[0]!);
    const scales = await this.#values;
    const cols = values.length / rows;
    const across = matrix.shape[1]!;
    // Blocks begin anew with each expert of a fused tensor.
    const whole = this.#place.shape.length === 3 ? this.#place.shape[1]! : Number.POSITIVE_INFINITY;
    const blocksDown = Number.isFinite(whole) ? Math.ceil(whole / blockRows) : 0;
    for (let r = 0; r < rows; r++) {
      const expert = Number.isFinite(whole) ? Math.floor((first + r) / whole) : 0;
      const inExpert = first + r - (expert ? expert * whole : 0);
      const at = (expert * blocksDown + Math.floor(inExpert / blockRows)) * across;
      for (let c = 0; c < cols; c++) values[r * cols + c]! *= scales[at + Math.floor(c / blockCols)]!;
    }
  }
}

/** Of three dimensions the first two are rows. */
function asRows(entry: SafetensorsEntry): SafetensorsEntry {
  const [first, second, third] = entry.shape;
  return third === undefined ? entry : { ...entry, shape: [first! * second!, third] };
}

/** Columns [from, from + count) of a matrix of `rows` rows, as rows. */
function columns(matrix: Float32Array, rows: number, from: number, count: number): Float32Array {
  const width = matrix.length / rows;
  const out = new Float32Array(count * rows);
  for (let i = 0; i < rows; i++) {
    for (let c = 0; c < count; c++) out[c * rows + i] = matrix[i * width + from + c]!;
  }
  return out;
}

/** The last transposed expert is kept: its stripes are asked for one after the other. */
export class Slabs {
  #key = '';
  #slab: Promise<Float32Array> | undefined;

  read({ source, entry }: Stored, row: number, rows: number): Promise<Float32Array> {
    const key = `${entry.name} ${row}`;
    if (this.#key !== key || !this.#slab) {
      this.#key = key;
      this.#slab = tensorRowsF32(source, entry, row, rows);
      this.#slab.catch(() => {
        this.#slab = undefined;
      });
    }
    return this.#slab;
  }
}

/**
 * Checks that scales are as many as blocks.
 * @throws CflowError TENSOR_MISMATCH
 */
export function checkScales({ stored, block }: BlockScales, shape: readonly number[], file: string): void {
  const [rows = 1, cols = 1] = shape.slice(-2);
  const expected = [...shape.slice(0, -2), Math.ceil(rows / block[0]), Math.ceil(cols / block[1])];
  if (String(stored.entry.shape) === String(expected)) return;
  throw new CflowError(
    'TENSOR_MISMATCH',
    `is [${stored.entry.shape}], not [${expected}], for blocks of ${block[0]} × ${block[1]}`,
    { file, field: stored.entry.name },
  );
}
