import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type LayerConfig,
  type ModelConfig,
  openModel,
  parameterCount,
  readTensor,
  verifyModel,
} from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { Model } from '@cflow/runtime-native';
import { parseGguf, tensorValues } from '@cflow/test-kit/gguf';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { modelOf } from '../src/synth/geometry.js';
import { type SynthModelOptions, synthesizeModel } from '../src/synth/model.js';

/** A model of the same kind, small enough for a test. */
const small = (name: string, change: Partial<ModelConfig>, layer: Partial<LayerConfig>): ModelConfig => {
  const config = modelOf(name, { layers: 2 }, 1);
  return { ...config, ...change, layers: config.layers.map((own) => ({ ...own, ...layer })) };
};
const { attention, experts } = modelOf('olmoe', { layers: 1 }, 1).layers[0]!;
const OLMOE = small(
  'olmoe',
  { hiddenDim: 256, vocabSize: 512 },
  {
    attention: { ...attention, heads: 2, kvHeads: 2 },
    experts: { ...experts!, count: 16, topK: 4, dim: 96 },
  },
);
const { attention: denseAttention, ffn } = modelOf('dense-1.1b', { layers: 1 }, 1).layers[0]!;
const DENSE = small(
  'dense-1.1b',
  { hiddenDim: 512, vocabSize: 640 },
  { attention: { ...denseAttention, heads: 8, kvHeads: 2 }, ffn: { ...ffn!, dim: 704 } },
);

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'cflow-synth-test-'));
});
afterEach(() => rm(dir, { recursive: true }));

async function make(
  options: Partial<SynthModelOptions> & Pick<SynthModelOptions, 'geometry'>,
): Promise<string> {
  const { format = 'cflow' } = options;
  const target = options.target ?? join(dir, `model-${options.seed ?? 1}.${format}`);
  await synthesizeModel({ dtype: 'q4_0', seed: 1, ...options, format, target });
  return target;
}

async function withModel<T>(
  path: string,
  use: (...opened: [Awaited<ReturnType<typeof openFileSource>>, Awaited<ReturnType<typeof openModel>>]) => T,
): Promise<Awaited<T>> {
  const source = await openFileSource(path);
  try {
    return await use(source, await openModel(source));
  } finally {
    await source.close();
  }
}

const tensorOf = (path: string, name: string) =>
  withModel(path, (source, file) => readTensor(source, file, name));

describe('geometries', () => {
  const whole = (name: string): ModelConfig => modelOf(name, {}, 1);

  it('has OLMoE 1B-7B: 6.9 billion parameters', () => {
    // A layer: 4·2048² attention, 4·2048 norms, 64·2048 router, 64·3·1024·2048 experts; twice 50,304·2048; final norm.
    expect(parameterCount(whole('olmoe'))).toBe(6_919_161_856);
  });

  it('has its delayed sibling: a dense FFN besides, and no q/k norms', () => {
    // A layer: 2·2048 norms fewer, 3·2048² FFN more.
    expect(parameterCount(whole('olmoe-delayed'))).toBe(6_919_161_856 + 16 * (3 * 2048 ** 2 - 2 * 2048));
    expect(whole('olmoe-delayed')).toMatchObject({
      combineStyle: 'delayedSum',
      denseDelay: 1,
      expertDelay: 2,
    });
  });

  it('has a dense model of 1.1 billion parameters', () => {
    // A layer: 2·2048² + 2·256·2048 attention, 3·5632·2048 FFN, 2·2048 norms; twice 32,000·2048; final norm.
    expect(parameterCount(whole('dense-1.1b'))).toBe(1_100_048_384);
  });

  it('takes another number of layers, by count or by bytes', () => {
    expect(modelOf('olmoe', { layers: 3 }, 1).layers.length).toBe(3);
    // 206,047,232 weights outside the layers and 419,569,664 in each, half a byte and a scale's sixteenth for each.
    expect(modelOf('olmoe', { bytes: 1e9 }, 18 / 32).layers.length).toBe(4);
    expect(() => modelOf('no-such', {}, 1)).toThrowError(expect.objectContaining({ code: 'USAGE' }));
  });
});

describe('models in our own containers', () => {
  it.each([
    ['cflow', 'q4_0'],
    ['vflow', 'q4_0'],
    ['cflow', 'q8_0'],
    ['cflow', 'f16'],
    ['cflow', 'f32'],
  ] as const)('%s %s opens and verifies clean, ragged edges included', async (format, dtype) => {
    const path = await make({ geometry: 'llama-tiny', format, dtype });
    await withModel(path, async (source, file) => {
      for await (const fault of verifyModel(source, file)) expect(fault).toBeUndefined();
    });
  });

  it('pads the last group of a row with level 8, as a converted file has it', async () => {
    const path = await make({ geometry: 'llama-tiny' });
    const bytes = await withModel(path, (source, file) => {
      const { offset, length } = file.streams.get('lm_head')!;
      return source.read(offset, length);
    });
    // 128 rows of 72 columns: header 16, 3 scales and 3 groups a row; the third group has 8 weights.
    const data = 16 + 128 * 3 * 2;
    for (const row of [0, 1, 127]) {
      const group = bytes.subarray(data + (row * 3 + 2) * 16, data + (row * 3 + 3) * 16);
      expect([...group.subarray(8)]).toEqual(Array(8).fill(0x88));
      expect([...group.subarray(0, 8)].map((byte) => byte >> 4)).toEqual(Array(8).fill(8));
      expect(new Set(group.subarray(0, 8)).size).toBeGreaterThan(1);
    }
  });

  it('has weights of 1/√columns, norms of one, and no two tensors alike', async () => {
    const path = await make({ geometry: DENSE });
    const up = await tensorOf(path, 'layers.0.ffn.up_proj.weight');
    const gate = await tensorOf(path, 'layers.0.ffn.gate_proj.weight');
    const norm = await tensorOf(path, 'layers.0.ffn_norm.weight');
    expect(deviation(up) * Math.sqrt(512)).toBeGreaterThan(0.97);
    expect(deviation(up) * Math.sqrt(512)).toBeLessThan(1.03);
    expect(new Set(norm)).toEqual(new Set([1]));
    expect(Math.abs(correlation(up, gate))).toBeLessThan(0.01);
    expect(Math.abs(correlation(up.subarray(0, 512), up.subarray(512, 1024)))).toBeLessThan(0.2);
  });

  it('gives the same bytes for the same seed only', async () => {
    const [one, again, other] = [1, 1, 2].map((seed, i) =>
      make({ geometry: 'llama-tiny', seed, target: join(dir, `${i}`) }),
    );
    const bytes = await readFile(await one!);
    expect(bytes.equals(await readFile(await again!))).toBe(true);
    expect(bytes.equals(await readFile(await other!))).toBe(false);
  });

  it.each([
    ['olmoe', OLMOE],
    ['dense', DENSE],
    ['ragged', 'llama-tiny'],
  ])('%s keeps logits of unit size through its layers', async (_, geometry) => {
    const model = await Model.open(await make({ geometry }), { engine: 'reference' });
    try {
      const session = model.createSession();
      await session.prefill([7, 300]);
      const size = deviation(session.logits());
      expect(size).toBeGreaterThan(0.5);
      expect(size).toBeLessThan(2);
    } finally {
      await model.close();
    }
  });
});

describe('GGUF', () => {
  it('says what llama.cpp must know of a dense model', async () => {
    const bytes = await readFile(await make({ geometry: DENSE, format: 'gguf' }));
    const file = parseGguf(bytes);
    const { 'tokenizer.ggml.tokens': tokens, ...values } = file.metadata;
    expect(values).toMatchObject({
      'general.architecture': 'llama',
      'llama.block_count': 2,
      'llama.embedding_length': 512,
      'llama.feed_forward_length': 704,
      'llama.attention.head_count': 8,
      'llama.attention.head_count_kv': 2,
      'llama.rope.dimension_count': 64,
      'llama.context_length': 2048,
    });
    expect(new Set(tokens as string[]).size).toBe(640);
    expect(Object.keys(file.tensors).length).toBe(3 + 2 * 9);
    const shapes = Object.fromEntries(
      Object.entries(file.tensors).map(([name, { dims, type }]) => [name, [type, ...dims]]),
    );
    expect(shapes).toMatchObject({
      'token_embd.weight': [2, 512, 640],
      'output_norm.weight': [0, 512],
      'output.weight': [2, 512, 640],
      'blk.1.attn_norm.weight': [0, 512],
      'blk.1.attn_q.weight': [2, 512, 512],
      'blk.1.attn_k.weight': [2, 512, 128],
      'blk.1.attn_v.weight': [2, 512, 128],
      'blk.1.attn_output.weight': [2, 512, 512],
      'blk.1.ffn_norm.weight': [0, 512],
      'blk.1.ffn_gate.weight': [2, 512, 704],
      'blk.1.ffn_up.weight': [2, 512, 704],
      'blk.1.ffn_down.weight': [2, 704, 512],
    });
    // 18 bytes for 32 weights, 4 for each weight of 5 norms.
    const weights = 2 * 640 * 512 + 2 * (2 * 512 ** 2 + 2 * 128 * 512 + 3 * 704 * 512);
    expect(bytes.length - file.dataStart).toBe((weights * 18) / 32 + 4 * 5 * 512);
  });

  it('holds the very weights of the .cflow, q and k in rows of neighbouring pairs', async () => {
    const ours = await make({ geometry: DENSE });
    const bytes = await readFile(await make({ geometry: DENSE, format: 'gguf' }));
    expectSame(
      tensorValues(bytes, 'blk.1.ffn_down.weight'),
      await tensorOf(ours, 'layers.1.ffn.down_proj.weight'),
    );
    expectSame(tensorValues(bytes, 'token_embd.weight'), await tensorOf(ours, 'embed_tokens.weight'));
    const k = await tensorOf(ours, 'layers.1.attn.k_proj.weight');
    const rows = tensorValues(bytes, 'blk.1.attn_k.weight');
    const row = (values: Float32Array, index: number) => values.subarray(index * 512, (index + 1) * 512);
    // Head 1 starts at row 64: its elements 0, 1, 2 there are elements 0, 32 and 1 here.
    for (const [at, from] of [
      [64, 64],
      [65, 96],
      [66, 65],
      [127, 127],
    ] as const) {
      expectSame(row(rows, at), row(k, from));
    }
  });

  it('has the experts of a layer in one tensor, and rotates OLMoE as we do', async () => {
    const ours = await make({ geometry: OLMOE });
    const bytes = await readFile(await make({ geometry: OLMOE, format: 'gguf' }));
    const file = parseGguf(bytes);
    expect(file.metadata).toMatchObject({
      'general.architecture': 'olmoe',
      'olmoe.expert_count': 16,
      'olmoe.expert_used_count': 4,
      'olmoe.feed_forward_length': 96,
    });
    const name = 'blk.1.ffn_down_exps.weight';
    expect(file.tensors[name]?.dims).toEqual([96, 256, 16]);
    const last = tensorValues(bytes, name).subarray(15 * 96 * 256);
    expectSame(last, await tensorOf(ours, 'layers.1.experts.15.down_proj.weight'));
    expectSame(
      tensorValues(bytes, 'blk.1.attn_q.weight'),
      await tensorOf(ours, 'layers.1.attn.q_proj.weight'),
    );
    expectSame(
      tensorValues(bytes, 'blk.1.ffn_gate_inp.weight'),
      await tensorOf(ours, 'layers.1.router.weight'),
    );
  });

  it.each([
    ['arch2_4', 'does not compute delayedSum layers'],
    ['llama-tiny', '72 columns are no whole groups'],
  ])('refuses %s and leaves nothing', async (geometry, reason) => {
    const refused = make({ geometry, format: 'gguf' });
    await expect(refused).rejects.toMatchObject({ code: 'UNSUPPORTED' });
    await expect(refused).rejects.toThrowError(reason);
    expect(await readdir(dir)).toEqual([]);
  });
});

describe('the target', () => {
  it('is not replaced unless asked', async () => {
    await make({ geometry: 'llama-tiny' });
    await expect(make({ geometry: 'llama-tiny' })).rejects.toMatchObject({ code: 'OUTPUT_EXISTS' });
    await make({ geometry: 'llama-tiny', overwrite: true });
  });

  it('does not appear when the work is interrupted', async () => {
    const abort = new AbortController();
    const onProgress = () => abort.abort();
    const work = make({ geometry: 'llama-tiny', signal: abort.signal, onProgress });
    await expect(work).rejects.toMatchObject({ code: 'INTERRUPTED' });
    expect(await readdir(dir)).toEqual([]);
  });
});

function deviation(values: Float32Array): number {
  return Math.sqrt(values.reduce((sum, v) => sum + v * v, 0) / values.length);
}

function correlation(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, v, i) => sum + v * b[i]!, 0) / a.length / deviation(a) / deviation(b);
}

/** Equal in every bit; a comparison element by element is slow, and its message endless. */
function expectSame(actual: Float32Array, expected: Float32Array): void {
  expect(actual.length).toBe(expected.length);
  const differs = actual.findIndex((value, i) => value !== expected[i]);
  expect([differs, actual[differs]]).toEqual([-1, undefined]);
}
