/** Statistics per tensor, read stripe by stripe. */
import {
  type ByteSource,
  DTYPES,
  type Dtype,
  dequantizeStripe,
  elements,
  f16ToF32,
  type ModelFile,
  readExactly,
  requireStripe,
  streamPieces,
  stripeId,
  stripeTiles,
  type TensorSpec,
  TILE_HEADER_BYTES,
} from '@cflow/format';
import type { StatsRow } from './schema.js';

/** Running minimum, maximum, mean and standard deviation of the finite values. */
export class Moments {
  count = 0;
  nonFinite = 0;
  zeros = 0;
  #min = Number.POSITIVE_INFINITY;
  #max = Number.NEGATIVE_INFINITY;
  #mean = 0;
  #squares = 0;

  /** Counts one more value; of NaN and infinities only how many there are. */
  add(value: number): void {
    this.count++;
    if (!Number.isFinite(value)) {
      this.nonFinite++;
      return;
    }
    if (value === 0) this.zeros++;
    if (value < this.#min) this.#min = value;
    if (value > this.#max) this.#max = value;
    // Welford: the plain sum of squares would cancel for norms, whose values all lie near one.
    const delta = value - this.#mean;
    this.#mean += delta / (this.count - this.nonFinite);
    this.#squares += delta * (value - this.#mean);
  }

  /** Population standard deviation; null where no value is finite. */
  summary() {
    const finite = this.count - this.nonFinite;
    const or = (value: number) => (finite ? value : null);
    return {
      zeros: this.count ? this.zeros / this.count : 0,
      min: or(this.#min),
      max: or(this.#max),
      mean: or(this.#mean),
      std: or(Math.sqrt(this.#squares / finite)),
    };
  }
}

interface Tally {
  readonly tensor: TensorSpec;
  readonly values: Moments;
  readonly scales: Moments;
}

/**
 * One row per tensor, in file order. Memory: one stripe.
 * @throws CflowError FORMAT_INVALID if a tile header is not the expected one
 */
export async function* tensorStats(source: ByteSource, file: ModelFile): AsyncGenerator<StatsRow> {
  for (const [name, { offset, stream }] of file.streams) {
    const tallies = new Map<string, Tally>();
    for (const piece of streamPieces(stream, file.dtype)) {
      const { tensor } = piece;
      const tally = tallies.get(tensor.name) ?? { tensor, values: new Moments(), scales: new Moments() };
      tallies.set(tensor.name, tally);
      const bytes = await readExactly(source, offset + piece.offset, piece.length, name);
      if (piece.kind === 'plain') addPlain(bytes, tally);
      else {
        const id = stripeId(piece.stripe, file.layout.version);
        const cols = tensor.shape[1]!;
        requireStripe(piece.dtype, bytes, piece.stripe.rows, cols, id, source.name, offset + piece.offset);
        addStripe(piece.dtype, bytes, piece.stripe.rows, cols, tally);
      }
    }
    for (const tally of tallies.values()) yield row(name, file.dtype, tally);
  }
}

function addPlain(bytes: Uint8Array, { values }: Tally): void {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 0; at < bytes.length; at += 4) values.add(view.getFloat32(at, true));
}

function addStripe(dtype: Dtype, bytes: Uint8Array, rows: number, cols: number, tally: Tally): void {
  for (const value of dequantizeStripe(dtype, bytes, rows, cols)) tally.values.add(value);
  const { group, scaleBytes } = DTYPES[dtype];
  if (!scaleBytes) return;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (const { width, at } of stripeTiles(dtype, rows, cols)) {
    const scales = rows * Math.ceil(width / group);
    for (let i = 0; i < scales; i++) {
      const bits = view.getUint16(at + TILE_HEADER_BYTES + scaleBytes * i, true);
      tally.scales.add(Math.abs(f16ToF32(bits)));
    }
  }
}

function row(stream: string, dtype: Dtype, { tensor, values, scales }: Tally): StatsRow {
  const { zeros, min, max, mean } = scales.summary();
  return {
    tensor: tensor.name,
    stream,
    shape: [...tensor.shape],
    dtype: tensor.matrix ? (tensor.dtype ?? dtype) : 'f32',
    values: elements(tensor.shape),
    nonFinite: values.nonFinite,
    ...values.summary(),
    ...(scales.count ? { scales: { count: scales.count, zeros, min, max, mean } } : {}),
  };
}
