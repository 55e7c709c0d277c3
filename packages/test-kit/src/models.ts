/** Small models made in memory. Values come from a seeded generator, so that a failure repeats. */
import {
  type ByteSink,
  type ByteSource,
  type Container,
  type Dtype,
  elements,
  encodeExpertTable,
  encodeHead,
  type FormatVersion,
  type Layout,
  type MetadataDraft,
  type ModelConfig,
  type ModelFile,
  ModelWriter,
  modelConfigSchema,
  modelTensors,
  planLayout,
  quantizeStripe,
  type Region,
  type Stream,
  streamPieces,
  stripeId,
} from '@cflow/format';

/** Mulberry32: 32 random bits a call. */
export function random(seed: number): () => number {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return (t ^ (t >>> 14)) >>> 0;
  };
}

export interface ModelShape {
  readonly layers?: number;
  readonly denseDelay?: number;
  readonly expertDelay?: number;
  readonly ffn?: boolean;
  readonly experts?: number;
  readonly hiddenDim?: number;
  readonly vocabSize?: number;
  readonly tied?: boolean;
  readonly slidingEvery?: number;
  readonly rich?: boolean;
}

/** A config with the report's constants; `rich` turns on every optional tensor. */
export function makeConfig(shape: ModelShape = {}): ModelConfig {
  const { layers = 2, denseDelay = 0, expertDelay = 0, ffn = true, experts = 3, hiddenDim = 40 } = shape;
  const { vocabSize = 130, tied = false, slidingEvery = 0, rich = false } = shape;
  const layer = (index: number) => ({
    attention: {
      heads: 4,
      kvHeads: 2,
      headDim: 8,
      rope: { theta: 10_000, rotaryDim: 8 },
      scale: 1 / Math.sqrt(8),
      ...(slidingEvery && (index + 1) % slidingEvery ? { slidingWindow: 16 } : {}),
      ...(rich ? { qkNorm: 'head', vNorm: true, biasQkv: true, biasOut: true } : {}),
    },
    ...(ffn ? { ffn: { dim: 72, activation: 'gelu', bias: rich } } : {}),
    ...(experts ? { experts: { count: experts, topK: 2, dim: 33, activation: 'gelu' } } : {}),
  });
  return modelConfigSchema.parse({
    name: 'unnamed',
    family: 'cflow',
    hiddenDim,
    vocabSize,
    contextLength: 2048,
    normEps: 1e-6,
    tiedEmbeddings: tied,
    ...(rich ? { finalLogitSoftcap: 30.1, scaleEmbeddings: true } : {}),
    combineStyle: 'delayedSum',
    denseDelay,
    expertDelay,
    layers: Array.from({ length: layers }, (_, index) => layer(index)),
  });
}

/** Values of every tensor, in [-1, 1) with 24 bits, so exact in f32. */
export function makeTensors(config: ModelConfig, seed = 1): Map<string, Float32Array> {
  const next = random(seed);
  return new Map(
    modelTensors(config).map(({ name, shape }) => [
      name,
      Float32Array.from({ length: elements(shape) }, () => (next() >>> 8) / 2 ** 23 - 1),
    ]),
  );
}

/** The bytes of one stream. */
export function encodeStream(
  stream: Stream,
  { dtype, version }: Pick<Layout, 'dtype' | 'version'>,
  tensors: Map<string, Float32Array>,
): Uint8Array {
  const pieces = [...streamPieces(stream, dtype)].map((piece) => {
    const values = tensors.get(piece.tensor.name)!;
    if (piece.kind === 'plain') return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    const { stripe, tensor } = piece;
    const cols = tensor.shape[1]!;
    const own = values.subarray(stripe.rowOffset * cols, (stripe.rowOffset + stripe.rows) * cols);
    const id = stripeId(stripe, version);
    return quantizeStripe(piece.dtype, own, stripe.rows, cols, id, { scaleSearch: false });
  });
  return new Uint8Array(Buffer.concat(pieces));
}

export function memorySink(): ByteSink & { bytes(): Uint8Array } {
  let buffer = new Uint8Array(1 << 16);
  let end = 0;
  return {
    name: 'sink',
    write: async (offset, piece) => {
      end = Math.max(end, offset + piece.length);
      if (end > buffer.length) {
        const larger = new Uint8Array(2 * end);
        larger.set(buffer);
        buffer = larger;
      }
      buffer.set(piece, offset);
    },
    bytes: () => buffer.slice(0, end),
  };
}

export function draft(config: ModelConfig): MetadataDraft {
  return {
    config,
    source: { name: 'test', files: [{ name: 'a.safetensors', bytes: 3, sha256: 'ab'.repeat(32) }] },
    converter: { version: '0.1.0', options: { dtype: 'f32', scaleSearch: false } },
  };
}

export interface MadeModel {
  readonly bytes: Uint8Array;
  readonly layout: Layout;
  readonly tensors: Map<string, Float32Array>;
}

export interface MadeOptions {
  readonly seed?: number;
  /** Of the format. Absent: as the writer chooses. */
  readonly version?: FormatVersion;
  readonly dtypes?: ReadonlyMap<string, Dtype>;
  readonly metadata?: MetadataDraft;
}

/** A whole file, by the writer. */
export async function makeModel(
  config: ModelConfig,
  dtype: Dtype,
  container: Container,
  { seed = 1, version, dtypes, metadata = draft(config) }: MadeOptions = {},
): Promise<MadeModel> {
  const tensors = makeTensors(config, seed);
  const sink = memorySink();
  const writer = new ModelWriter(sink, { dtype, container, metadata, version, dtypes });
  for (const region of writer.layout.regions) {
    if (region.stream)
      await writer.writeStream(region, [encodeStream(region.stream, writer.layout, tensors)]);
    else await writer.writeFixed(region);
  }
  await writer.finish();
  return { bytes: sink.bytes(), layout: writer.layout, tensors };
}

/** A file without metadata: all it says of the model is in its header. */
export function makeBareModel(config: ModelConfig, dtype: Dtype, container: Container, seed = 1): MadeModel {
  const tensors = makeTensors(config, seed);
  const layout = planLayout(config, dtype, container, 0);
  const bytes = new Uint8Array(layout.fileBytes);
  bytes.set(encodeHead(layout, new Uint8Array(0)), 0);
  for (const { kind, layer, stream, offset } of layout.regions) {
    if (kind === 'expertTable') bytes.set(encodeExpertTable(layout, layer!), offset);
    if (stream) bytes.set(encodeStream(stream, layout, tensors), offset);
  }
  return { bytes, layout, tensors };
}

/** A source that refuses what a careful reader never asks for: a byte outside the file. */
export function guardedSource(bytes: Uint8Array, name = 'm.cflow'): ByteSource & { requested: number } {
  const source = {
    name,
    size: bytes.length,
    requested: 0,
    read: async (offset: number, length: number) => {
      const inside = offset >= 0 && length >= 0 && offset + length <= bytes.length;
      if (!inside) throw new Error(`read ${length} bytes at ${offset} of ${bytes.length}`);
      source.requested += length;
      return bytes.subarray(offset, offset + length);
    },
  };
  return source;
}

/** A file that has a layout but no bytes: all that lowering looks at. */
export function layoutOnly(config: ModelConfig, dtype: Dtype = 'q4_0'): ModelFile {
  const layout = planLayout(config, dtype, 'cflow', 0);
  const regions = layout.regions.filter(
    (region): region is Region & { stream: Stream } => region.stream !== undefined,
  );
  const streams = new Map(regions.map((region) => [region.name, region]));
  return { container: 'cflow', dtype, config, layout, streams, metadata: {} as ModelFile['metadata'] };
}
