import {
  type ByteSource,
  CflowError,
  dequantizeStripe,
  elements,
  type ModelFile,
  partBytes,
  partTensors,
  readExactly,
  readStream,
  streamTensors,
  stripeBytes,
  type TensorSpec,
  TILE_ROWS,
  type WeightRef,
} from '@cflow/format';

/** Where an engine gets its weights, in f32. Loading is by stream: the unit that a plan calls for. */
export interface WeightStore {
  /** Makes the tensors of a stream available; returns at once if they are. */
  load(stream: string): Promise<void>;
  /** A whole tensor, row-major; loads its stream if need be. */
  tensor(ref: WeightRef): Float32Array | Promise<Float32Array>;
  /** One row of a matrix, without loading the matrix. */
  row(ref: WeightRef, row: number): Float32Array | Promise<Float32Array>;
}

/** Weights of an opened file: each stream is read and dequantized when first asked for, then kept. */
export class FileWeightStore implements WeightStore {
  readonly #source: ByteSource;
  readonly #file: ModelFile;
  readonly #tensors = new Map<string, Float32Array>();
  readonly #loads = new Map<string, Promise<void>>();
  readonly #stripes = new Map<string, Promise<Float32Array>>();

  constructor(source: ByteSource, file: ModelFile) {
    this.#source = source;
    this.#file = file;
  }

  /** Bytes of f32 weights held. */
  get residentBytes(): number {
    return [...this.#tensors.values()].reduce((sum, tensor) => sum + tensor.byteLength, 0);
  }

  load(stream: string): Promise<void> {
    const started = this.#loads.get(stream);
    if (started) return started;
    const load = this.#read(stream);
    this.#loads.set(stream, load);
    // A failed read is forgotten, so that the next use tries again; whoever awaits `load` gets the error.
    load.catch(() => this.#loads.delete(stream));
    return load;
  }

  tensor(ref: WeightRef): Float32Array | Promise<Float32Array> {
    return this.#tensors.get(ref.tensor) ?? this.#loaded(ref);
  }

  async row(ref: WeightRef, row: number): Promise<Float32Array> {
    const cols = this.#spec(ref).shape[1]!;
    const whole = this.#tensors.get(ref.tensor);
    if (whole) return whole.subarray(row * cols, (row + 1) * cols);
    const first = row - (row % TILE_ROWS);
    const stripe = await this.#stripe(ref, first);
    return stripe.subarray((row - first) * cols, (row - first + 1) * cols);
  }

  async #loaded(ref: WeightRef): Promise<Float32Array> {
    await this.load(ref.stream);
    const tensor = this.#tensors.get(ref.tensor);
    if (!tensor) throw new CflowError('INTERNAL', `stream ${ref.stream} has no tensor ${ref.tensor}`);
    return tensor;
  }

  async #read(stream: string): Promise<void> {
    this.#region(stream);
    const tensors = await readStream(this.#source, this.#file, stream);
    for (const [name, values] of tensors) this.#tensors.set(name, values);
  }

  /** The stripe of 128 rows from `first`, of a matrix that is interleaved with no other (embeddings). */
  #stripe(ref: WeightRef, first: number): Promise<Float32Array> {
    const key = `${ref.tensor}@${first}`;
    const kept = this.#stripes.get(key);
    if (kept) return kept;
    const stripe = this.#readStripe(ref, first);
    this.#stripes.set(key, stripe);
    stripe.catch(() => this.#stripes.delete(key));
    return stripe;
  }

  async #readStripe(ref: WeightRef, first: number): Promise<Float32Array> {
    const { shape, dtype = this.#file.dtype } = this.#spec(ref);
    const [rows, cols] = shape as [number, number];
    const height = Math.min(TILE_ROWS, rows - first);
    const offset = this.#offset(ref) + (first / TILE_ROWS) * stripeBytes(dtype, TILE_ROWS, cols);
    const length = stripeBytes(dtype, height, cols);
    return dequantizeStripe(dtype, await readExactly(this.#source, offset, length, ref.tensor), height, cols);
  }

  #region(stream: string) {
    const region = this.#file.streams.get(stream);
    if (!region)
      throw new CflowError('INTERNAL', `the plan asks for stream ${stream}, which the file has not`);
    return region;
  }

  /** First byte of a matrix. */
  #offset(ref: WeightRef): number {
    const { offset, stream } = this.#region(ref.stream);
    let before = 0;
    for (const part of stream.parts) {
      if (partTensors(part).some(({ name }) => name === ref.tensor)) break;
      before += partBytes(part, this.#file.dtype);
    }
    return offset + before;
  }

  #spec(ref: WeightRef): TensorSpec {
    const tensor = streamTensors(this.#region(ref.stream).stream).find(({ name }) => name === ref.tensor);
    if (!tensor) throw new CflowError('INTERNAL', `stream ${ref.stream} has no tensor ${ref.tensor}`);
    return tensor;
  }
}

/** Weights that are in memory already, by tensor name. */
export class MemoryWeightStore implements WeightStore {
  readonly #tensors: ReadonlyMap<
    string,
    { readonly shape: readonly number[]; readonly values: Float32Array }
  >;

  /** @throws CflowError TENSOR_MISMATCH if a tensor's values are not as many as its shape says */
  constructor(
    tensors: ReadonlyMap<string, { readonly shape: readonly number[]; readonly values: Float32Array }>,
  ) {
    for (const [name, { shape, values }] of tensors) {
      if (elements(shape) === values.length) continue;
      throw new CflowError('TENSOR_MISMATCH', `${values.length} values for shape [${shape.join(', ')}]`, {
        field: name,
      });
    }
    this.#tensors = tensors;
  }

  async load(): Promise<void> {}

  tensor({ tensor }: WeightRef): Float32Array {
    return this.#get(tensor).values;
  }

  row({ tensor }: WeightRef, row: number): Float32Array {
    const { shape, values } = this.#get(tensor);
    return values.subarray(row * shape[1]!, (row + 1) * shape[1]!);
  }

  #get(name: string) {
    const found = this.#tensors.get(name);
    if (!found) throw new CflowError('TENSOR_MISMATCH', 'missing', { field: name });
    return found;
  }
}
