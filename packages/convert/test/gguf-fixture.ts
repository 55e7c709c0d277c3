/** A writer of GGUF from the specification, and models, for tests alone. */
import { writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { type ModelConfigInput, memorySource, openModel, parseModelConfig, readTensor } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { directory, safetensors, type TestTensor } from '@cflow/test-kit/checkpoint';
import { convert } from '../src/index.js';

type Value = readonly [type: number, value: unknown, item?: number];
export const u32 = (value: number): Value => [4, value];
export const f32 = (value: number): Value => [6, value];
export const text = (value: string): Value => [8, value];
export const list = (item: number, values: unknown[]): Value => [9, values, item];

function number(size: number, write: (bytes: Buffer) => void): Buffer {
  const bytes = Buffer.alloc(size);
  write(bytes);
  return bytes;
}
const le32 = (n: number) => number(4, (b) => b.writeUInt32LE(n >>> 0));
const le64 = (n: number | bigint) => number(8, (b) => b.writeBigUInt64LE(BigInt(n)));
const string = (s: string) => Buffer.concat([le64(Buffer.byteLength(s)), Buffer.from(s)]);

function encode([type, value, item]: Value): Buffer {
  if (type === 9) {
    const values = value as unknown[];
    return Buffer.concat([le32(item!), le64(values.length), ...values.map((each) => encode([item!, each]))]);
  }
  if (type === 8) return string(value as string);
  if (type === 6) return number(4, (b) => b.writeFloatLE(value as number));
  if (type === 7) return Buffer.from([value ? 1 : 0]);
  return le32(value as number);
}

export interface TestGgufTensor {
  dims: number[];
  type: number;
  bytes: Uint8Array;
}

/** A whole file; the data of tensors follow one another on multiples of 32. */
export function ggufFile(
  metadata: Record<string, Value>,
  tensors: Record<string, TestGgufTensor>,
  version = 3,
): Buffer {
  const pad = (n: number) => Math.ceil(n / 32) * 32;
  const head: Buffer[] = [Buffer.from('GGUF'), le32(version)];
  head.push(le64(Object.keys(tensors).length), le64(Object.keys(metadata).length));
  for (const [key, value] of Object.entries(metadata)) head.push(string(key), le32(value[0]), encode(value));
  let offset = 0;
  for (const [name, { dims, type, bytes }] of Object.entries(tensors)) {
    head.push(string(name), le32(dims.length), ...dims.map((dim) => le64(dim)), le32(type), le64(offset));
    offset = pad(offset + bytes.length);
  }
  const joined = Buffer.concat(head);
  const data = Object.values(tensors).flatMap(({ bytes }) => [
    bytes,
    Buffer.alloc(pad(bytes.length) - bytes.length),
  ]);
  return Buffer.concat([joined, Buffer.alloc(pad(joined.length) - joined.length), ...data]);
}

/** Pseudo-random values in [−0.5, 0.5): Knuth's multiplicative hash. */
export const noise = (count: number, salt: number): number[] =>
  Array.from(
    { length: count },
    (_, i) => (Math.imul(i + 1 + salt * 7919, 2_654_435_761) >>> 0) / 2 ** 32 - 0.5,
  );

type LayerInput = ModelConfigInput['layers'][number];
const HEADS = { heads: 4, kvHeads: 2, headDim: 16, scale: 0.25 };
const attention = (change: object = {}): LayerInput['attention'] => ({
  ...HEADS,
  rope: { theta: 10_000, rotaryDim: 16 },
  ...change,
});
const ffn = { dim: 96, activation: 'silu' as const };
const experts = (normalizeTopK: boolean) => ({
  count: 3,
  topK: 2,
  dim: 32,
  activation: 'silu' as const,
  normalizeTopK,
});
const model = (
  family: string,
  layers: LayerInput[],
  change: Partial<ModelConfigInput> = {},
): ModelConfigInput => ({
  ...{ name: 'tiny', family, hiddenDim: 64, vocabSize: 200, contextLength: 128, normEps: 1e-5 },
  ...{ combineStyle: 'sequential', bosTokenId: 1, eosTokenIds: [2], layers },
  ...change,
});
const LLAMA3 = {
  type: 'llama3',
  factor: 8,
  lowFreqFactor: 1,
  highFreqFactor: 4,
  originalContextLength: 64,
} as const;
const gemmaLayer = (index: number): LayerInput => ({
  attention: attention({
    qkNorm: 'head',
    ...((index + 1) % 6 === 0
      ? { rope: { theta: 1e6, rotaryDim: 16, scaling: { type: 'linear', factor: 8 } } }
      : { slidingWindow: 32 }),
  }),
  ffn: { ...ffn, activation: 'gelu_tanh' },
  norms: 'sandwich',
});
const smolLayer = (index: number): LayerInput => {
  const { rope, ...still } = attention();
  return { attention: (index + 1) % 4 === 0 ? still : { ...still, rope }, ffn };
};

/** One model of every architecture that GGUF is written for. */
export const MODELS: Record<string, ModelConfigInput> = {
  llama: model(
    'llama',
    [
      { attention: attention(), ffn },
      { attention: attention(), ffn },
    ],
    { tiedEmbeddings: true },
  ),
  biased: model('llama', [
    { attention: attention({ biasQkv: true, biasOut: true }), ffn: { ...ffn, bias: true } },
  ]),
  llama3: model('llama', [
    { attention: attention({ rope: { theta: 5e5, rotaryDim: 16, scaling: LLAMA3 } }), ffn },
  ]),
  yarn: model('qwen3', [
    {
      attention: attention({
        qkNorm: 'head',
        scale: (0.1 * Math.log(4) + 1) ** 2 / 4,
        rope: {
          theta: 1e6,
          rotaryDim: 16,
          scaling: {
            ...{ type: 'yarn', factor: 4, originalContextLength: 32 },
            ...{ betaFast: 32, betaSlow: 1, truncate: true },
          },
        },
      }),
      ffn,
    },
  ]),
  mistral: model('mistral', [{ attention: attention({ slidingWindow: 48 }), ffn }]),
  mixtral: model('mixtral', [{ attention: attention(), experts: experts(true) }]),
  qwen2: model('qwen2', [{ attention: attention({ biasQkv: true }), ffn }]),
  qwen3: model('qwen3', [
    {
      attention: attention({
        qkNorm: 'head',
        headDim: 32,
        scale: 32 ** -0.5,
        rope: { theta: 1e6, rotaryDim: 32 },
      }),
      ffn,
    },
  ]),
  qwen3_moe: model('qwen3_moe', [{ attention: attention({ qkNorm: 'head' }), experts: experts(true) }]),
  olmoe: model('olmoe', [{ attention: attention({ qkNorm: 'whole', kvHeads: 4 }), experts: experts(false) }]),
  olmo2: model('olmo2', [{ attention: attention({ qkNorm: 'whole' }), ffn, norms: 'post' }]),
  smollm3: model('smollm3', [0, 1, 2, 3].map(smolLayer), { tiedEmbeddings: true }),
  gemma3_text: model('gemma3_text', [0, 1, 2, 3, 4, 5, 6].map(gemmaLayer), {
    tiedEmbeddings: true,
    scaleEmbeddings: true,
  }),
};

/** A .cflow of a model with noise for weights; returns its path. */
export async function makeCflow(
  config: ModelConfigInput,
  dtype: 'f32' | 'f16' | 'q8_0' | 'q4_0',
  tokenizer?: object,
  more: Readonly<Record<string, object>> = {},
): Promise<string> {
  const { modelTensors } = await import('@cflow/format');
  const parsed = parseModelConfig(config);
  const tensors = modelTensors(parsed).map(({ name, shape }, salt) => {
    const count = shape.reduce((product, n) => product * n, 1);
    return [name, { shape: [...shape], values: noise(count, salt) }] as [string, TestTensor];
  });
  const dir = await directory({
    'config.json': { ...parsed, model_type: 'cflow' },
    'model.safetensors': safetensors(Object.fromEntries(tensors)),
    ...(tokenizer && { 'tokenizer.json': tokenizer }),
    ...more,
  });
  const output = join(dir, 'model.cflow');
  await convert({ source: dir, output, dtype, threads: 1 });
  return output;
}

/** CRC-32 of every stream, as the file's metadata have them. */
export async function checksumsOf(path: string): Promise<Record<string, string>> {
  const source = await openFileSource(path);
  try {
    return (await openModel(source)).metadata.checksums;
  } finally {
    await source.close();
  }
}

export async function saved(bytes: Uint8Array, name = 'model.gguf'): Promise<string> {
  const path = join(await directory({}), name);
  await writeFile(path, bytes);
  return path;
}

export const inMemory = (bytes: Uint8Array) => memorySource(bytes, 'model.gguf');

export const beside = (path: string, name: string) => join(dirname(path), name);
export const run = (source: string, output: string, more: object = {}) =>
  convert({ source, output, threads: 1, ...more });

/** Values of one of our tensors, as a .cflow has them. */
export async function ours(path: string, name: string): Promise<number[]> {
  const source = await openFileSource(path);
  try {
    return [...(await readTensor(source, await openModel(source), name))];
  } finally {
    await source.close();
  }
}

export const rowsOf = (values: number[], cols: number) =>
  Array.from({ length: values.length / cols }, (_, row) => values.slice(row * cols, (row + 1) * cols));

/** A llama of one layer by hand: hidden 32, 2 heads of 16, ffn 64, vocabulary 40. */
export function handmade(type: number, encode: (values: number[]) => Uint8Array) {
  const shapes: Record<string, number[]> = {
    'token_embd.weight': [32, 40],
    'output_norm.weight': [32],
    'blk.0.attn_norm.weight': [32],
    'blk.0.ffn_norm.weight': [32],
    'blk.0.attn_q.weight': [32, 32],
    'blk.0.attn_k.weight': [32, 16],
    'blk.0.attn_v.weight': [32, 16],
    'blk.0.attn_output.weight': [32, 32],
    'blk.0.ffn_gate.weight': [32, 64],
    'blk.0.ffn_up.weight': [32, 64],
    'blk.0.ffn_down.weight': [64, 32],
  };
  const tensors = Object.entries(shapes).map(([name, dims], salt) => {
    const values = noise(
      dims.reduce((a, b) => a * b, 1),
      salt,
    );
    const matrix = dims.length > 1;
    const bytes = matrix ? encode(values) : new Uint8Array(Float32Array.from(values).buffer);
    return [name, { dims, type: matrix ? type : 0, bytes }] as [string, TestGgufTensor];
  });
  const metadata = {
    'general.architecture': text('llama'),
    'llama.block_count': u32(1),
    'llama.context_length': u32(64),
    'llama.embedding_length': u32(32),
    'llama.feed_forward_length': u32(64),
    'llama.attention.head_count': u32(2),
    'llama.attention.head_count_kv': u32(1),
    'llama.attention.layer_norm_rms_epsilon': f32(1e-6),
  };
  return { metadata, tensors: Object.fromEntries(tensors) };
}

export const f32Bytes = (values: number[]) => new Uint8Array(Float32Array.from(values).buffer);
