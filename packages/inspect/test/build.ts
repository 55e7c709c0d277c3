/** Random models in memory and on disk, written with the format's own writer, for any config. */
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type ByteSource,
  type Container,
  type Dtype,
  elements,
  type Layout,
  type Metadata,
  type ModelConfig,
  type ModelConfigInput,
  ModelWriter,
  parseModelConfig,
  quantizeStripe,
  type Stream,
  streamPieces,
  stripeId,
} from '@cflow/format';

export interface BuildOptions {
  readonly dtype?: Dtype;
  readonly container?: Container;
  /** Value of element `index` of a tensor; random in ±1 by default. */
  readonly value?: (tensor: string, index: number) => number;
  readonly tokenizer?: Metadata['tokenizer'];
}

/** Two layers, both with FFN and four experts, and delays: every kind of stream, and ragged in rows and columns. */
export function tinyConfig(changes: Partial<ModelConfigInput> = {}): ModelConfig {
  const layer: ModelConfigInput['layers'][number] = {
    attention: { heads: 4, kvHeads: 2, headDim: 8, rope: { theta: 10_000, rotaryDim: 8 }, scale: 8 ** -0.5 },
    ffn: { dim: 136, activation: 'gelu' },
    experts: { count: 4, topK: 2, dim: 24, activation: 'gelu' },
  };
  return parseModelConfig({
    name: 'tiny',
    family: 'cflow',
    hiddenDim: 40,
    vocabSize: 50,
    contextLength: 64,
    normEps: 1e-6,
    combineStyle: 'delayedSum',
    denseDelay: 1,
    expertDelay: 1,
    layers: [layer, layer],
    ...changes,
  });
}

function lcg(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 31 - 1;
  };
}

/** A whole file in memory. */
export async function buildModel(
  config: ModelConfig,
  { dtype = 'q4_0', container = 'cflow', value, tokenizer }: BuildOptions = {},
): Promise<{ bytes: Uint8Array; layout: Layout }> {
  let bytes = new Uint8Array(0);
  const sink = {
    name: 'memory',
    write: async (offset: number, piece: Uint8Array) => bytes.set(piece, offset),
  };
  const writer = new ModelWriter(sink, {
    dtype,
    container,
    metadata: {
      config,
      source: {
        name: 'random',
        files: [{ name: 'model.safetensors', bytes: 1234, sha256: 'ab'.repeat(32) }],
      },
      converter: { version: '0.1.0', options: { dtype, scaleSearch: false } },
      ...(tokenizer ? { tokenizer } : {}),
    },
  });
  bytes = new Uint8Array(writer.layout.fileBytes);
  const random = lcg(1);
  for (const region of writer.layout.regions) {
    if (region.stream)
      await writer.writeStream(region, pieces(region.stream, writer.layout, value ?? random));
    else await writer.writeFixed(region);
  }
  await writer.finish();
  return { bytes, layout: writer.layout };
}

function* pieces(
  stream: Stream,
  { dtype, version }: Layout,
  value: (tensor: string, index: number) => number,
): Generator<Uint8Array> {
  for (const piece of streamPieces(stream, dtype)) {
    const { name, shape } = piece.tensor;
    if (piece.kind === 'plain') {
      const bytes = new Uint8Array(piece.length);
      const view = new DataView(bytes.buffer);
      for (let i = 0; i < elements(shape); i++) view.setFloat32(4 * i, value(name, i), true);
      yield bytes;
      continue;
    }
    const { rows, rowOffset } = piece.stripe;
    const cols = shape[1]!;
    const values = Float32Array.from({ length: rows * cols }, (_, i) => value(name, rowOffset * cols + i));
    const id = stripeId(piece.stripe, version);
    yield quantizeStripe(dtype, values, rows, cols, id, { scaleSearch: false });
  }
}

/** Puts bytes into a file of a fresh temporary directory; returns its path. */
export function toFile(bytes: Uint8Array, name = 'model.cflow'): string {
  const path = join(mkdtempSync(join(tmpdir(), 'cflow-inspect-')), name);
  writeFileSync(path, bytes);
  return path;
}

/** A source that records which bytes are read. */
export class RecordingSource implements ByteSource {
  readonly name = 'recorded.cflow';
  readonly size: number;
  readonly reads: { offset: number; length: number }[] = [];
  readonly #bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.size = bytes.length;
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    this.reads.push({ offset, length });
    return this.#bytes.subarray(offset, offset + length);
  }
}

/** Runs `main` and collects what it says. `path` in the output becomes FILE, so that it can be compared. */
export async function runCli(
  main: (
    argv: string[],
    io: { out(t: string): Promise<void>; err(t: string): Promise<void> },
  ) => Promise<number>,
  argv: string[],
): Promise<{ code: number; out: string; err: string }> {
  let out = '';
  let err = '';
  const code = await main(argv, {
    out: async (text) => {
      out += text;
    },
    err: async (text) => {
      err += text;
    },
  });
  const hide = (text: string) =>
    argv.reduce((t, arg) => (arg.includes('/') ? t.replaceAll(arg, 'FILE') : t), text);
  return { code, out: hide(out), err: hide(err) };
}
