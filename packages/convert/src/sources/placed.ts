/** Rows of a model's tensor out of the stored tensor that holds it: by itself, in a fused one, transposed, or scaled. */
import { type ByteSource, readExactly } from '@cflow/format';
import type { TensorPlace } from '../families/index.js';
import { type RowRange, type SafetensorsEntry, tensorRowRange, tensorRowsF32 } from './safetensors.js';
import { SCALE_DECODERS } from './scales.js';

interface Stored {
  readonly source: ByteSource;
  readonly entry: SafetensorsEntry;
}

/** Stored scales with how they lie. */
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
    if (transposed) {
      const whole = shape[1]!;
      const slab = await slabs.read(`${this.#place.name} ${row}`, () => this.#stretch(row, whole));
      return columns(slab, whole, transposed.column + rowStart, rows);
    }
    const values = await this.#stretch(row + rowStart, rows);
    if (offset) for (let i = 0; i < values.length; i++) values[i] = values[i]! + offset;
    return values;
  }

  /** Rows [first, first + rows) of the stored tensor, seen as rows of its last dimension, times their scales. */
  async #stretch(first: number, rows: number): Promise<Float32Array> {
    const { source, entry } = this.#stored;
    const values = await tensorRowsF32(source, entry, first, rows);
    if (this.#scales) await this.#scale(values, first, rows);
    return values;
  }

  /** Multiplies rows from `first` on by the scales of their blocks; blocks begin anew with each expert. */
  async #scale(values: Float32Array, first: number, rows: number): Promise<void> {
    const { stored, block } = this.#scales!;
    const [blockRows, blockCols] = block;
    this.#values ??= readScales(stored);
    const scales = await this.#values;
    const { shape } = this.#place;
    const cols = shape.at(-1)!;
    const across = Math.ceil(cols / blockCols);
    const rowsOfExpert = shape.length === 3 ? shape[1]! : Number.MAX_SAFE_INTEGER;
    const blocksDown = Math.ceil(rowsOfExpert / blockRows);
    for (let r = 0; r < rows; r++) {
      const expert = Math.floor((first + r) / rowsOfExpert);
      const within = Math.floor((first + r - expert * rowsOfExpert) / blockRows);
      const at = (expert * blocksDown + within) * across;
      for (let c = 0; c < cols; c++) values[r * cols + c]! *= scales[at + Math.floor(c / blockCols)]!;
    }
  }
}

async function readScales({ source, entry }: Stored): Promise<Float32Array> {
  return SCALE_DECODERS[entry.dtype]!(await readExactly(source, entry.offset, entry.bytes, entry.name));
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

  read(key: string, load: () => Promise<Float32Array>): Promise<Float32Array> {
    if (this.#key !== key || !this.#slab) {
      this.#key = key;
      this.#slab = load();
      this.#slab.catch(() => {
        this.#slab = undefined;
      });
    }
    return this.#slab;
  }
}
