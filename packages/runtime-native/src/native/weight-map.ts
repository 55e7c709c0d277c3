/** Where the tensors of a file lie, as byte offsets. */
import {
  CflowError,
  type Dtype,
  type ModelFile,
  type Stream,
  streamName,
  streamPieces,
  type TensorSpec,
  type TiledMatrix,
  type WeightRef,
} from '@cflow/format';

/** A tensor in its stream; offsets count from the stream's first byte. */
type Placed =
  | { readonly kind: 'plain'; readonly offset: number; readonly shape: readonly number[] }
  | { readonly kind: 'tiled'; readonly matrix: TiledMatrix };

/** A plain f32 tensor: byte offset in the file and shape. */
export interface PlainTensor {
  readonly offset: number;
  readonly shape: readonly number[];
}

/** Experts of one layer: where each stream starts, and the matrices that all of them have at the same place in it. */
export interface ExpertBank {
  readonly offsets: Float64Array;
  /** @param projection `gate_proj`, `up_proj` or `down_proj` */
  matrix(projection: string): TiledMatrix;
}

export class WeightMap {
  readonly #file: ModelFile;
  readonly #streams = new Map<string, ReadonlyMap<string, Placed>>();

  constructor(file: ModelFile) {
    this.#file = file;
  }

  /** @throws CflowError INTERNAL if the file has no such tensor, or it is tiled */
  plain(ref: WeightRef): PlainTensor {
    const placed = this.#placed(ref);
    if (placed.kind !== 'plain')
      throw new CflowError('INTERNAL', 'a tiled matrix, not plain', { field: ref.tensor });
    return { offset: this.#region(ref.stream).offset + placed.offset, shape: placed.shape };
  }

  /** @throws CflowError INTERNAL if the file has no such tensor, or it is plain */
  tiled(ref: WeightRef): TiledMatrix {
    const matrix = this.relative(ref);
    const { offset } = this.#region(ref.stream);
    return { ...matrix, stripes: matrix.stripes.map((stripe) => offset + stripe) };
  }

  experts(layer: number, count: number): ExpertBank {
    const name = (expert: number) => streamName.expert(layer, expert);
    return {
      offsets: Float64Array.from({ length: count }, (_, expert) => this.#region(name(expert)).offset),
      matrix: (projection) => this.relative({ stream: name(0), tensor: `${name(0)}.${projection}.weight` }),
    };
  }

  /**
   * A matrix whose stripes count from the first byte of its stream.
   * @throws CflowError INTERNAL if the file has no such tensor, or it is plain
   */
  relative(ref: WeightRef): TiledMatrix {
    const placed = this.#placed(ref);
    if (placed.kind !== 'tiled')
      throw new CflowError('INTERNAL', 'plain, not a tiled matrix', { field: ref.tensor });
    return placed.matrix;
  }

  #region(stream: string) {
    const region = this.#file.streams.get(stream);
    if (!region)
      throw new CflowError('INTERNAL', `the plan asks for stream ${stream}, which the file has not`);
    return region;
  }

  #placed({ stream, tensor }: WeightRef): Placed {
    let tensors = this.#streams.get(stream);
    if (!tensors) {
      tensors = placedTensors(this.#region(stream).stream, this.#file.dtype);
      this.#streams.set(stream, tensors);
    }
    const found = tensors.get(tensor);
    if (!found) throw new CflowError('INTERNAL', `stream ${stream} has no tensor ${tensor}`);
    return found;
  }
}

function placedTensors(stream: Stream, dtype: Dtype): Map<string, Placed> {
  const placed = new Map<string, Placed>();
  const stripes = new Map<TensorSpec, number[]>();
  for (const piece of streamPieces(stream, dtype)) {
    const { tensor, offset } = piece;
    if (piece.kind === 'plain') {
      placed.set(tensor.name, { kind: 'plain', offset, shape: tensor.shape });
    } else {
      const own = stripes.get(tensor);
      if (own) own.push(offset);
      else stripes.set(tensor, [offset]);
    }
  }
  for (const [{ name, shape }, own] of stripes) {
    const matrix = { rows: shape[0]!, cols: shape[1]!, stripes: Float64Array.from(own) };
    placed.set(name, { kind: 'tiled', matrix });
  }
  return placed;
}
