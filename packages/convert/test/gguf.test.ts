import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { modelTensors, openModel, PRESETS, parseModelConfig, readTensor } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { describe, expect, it } from 'vitest';
import { convert, llama3Factors, openGguf, ourRow, planGguf } from '../src/index.js';
import {
  checksumsOf,
  f32,
  f32Values,
  ggufFile,
  inMemory,
  list,
  MODELS,
  makeCflow,
  noise,
  parseGguf,
  saved,
  type TestGgufTensor,
  tensorBytes,
  text,
  u32,
} from './gguf-fixture.js';

const beside = (path: string, name: string) => join(dirname(path), name);
const run = (source: string, output: string, more: object = {}) =>
  convert({ source, output, threads: 1, ...more });

/** Values of one of our tensors, as a .cflow has them. */
async function ours(path: string, name: string): Promise<number[]> {
  const source = await openFileSource(path);
  try {
    return [...(await readTensor(source, await openModel(source), name))];
  } finally {
    await source.close();
  }
}

const rowsOf = (values: number[], cols: number) =>
  Array.from({ length: values.length / cols }, (_, row) => values.slice(row * cols, (row + 1) * cols));

describe('export', () => {
  it('names llama.cpp’s keys and tensors', async () => {
    const cflow = await makeCflow(MODELS.llama!, 'f32');
    await run(cflow, beside(cflow, 'a.gguf'));
    const { metadata, tensors } = parseGguf(await readFile(beside(cflow, 'a.gguf')));
    expect(metadata).toMatchObject({
      'general.architecture': 'llama',
      'general.name': 'tiny',
      'general.file_type': 0,
      'llama.vocab_size': 200,
      'llama.context_length': 128,
      'llama.embedding_length': 64,
      'llama.block_count': 2,
      'llama.feed_forward_length': 96,
      'llama.attention.head_count': 4,
      'llama.attention.head_count_kv': 2,
      'llama.attention.key_length': 16,
      'llama.rope.dimension_count': 16,
      'llama.rope.freq_base': 10_000,
      'tokenizer.ggml.bos_token_id': 1,
    });
    expect(metadata['llama.attention.layer_norm_rms_epsilon']).toBe(Math.fround(1e-5));
    // A tied head is left out; dimensions are the fastest first.
    expect(tensors['output.weight']).toBeUndefined();
    expect(tensors['token_embd.weight']!.dims).toEqual([64, 200]);
    expect(tensors['blk.1.attn_k.weight']!.dims).toEqual([64, 32]);
    expect(tensors['blk.1.ffn_down.weight']!.dims).toEqual([96, 64]);
    expect(Object.keys(tensors)).toHaveLength(2 + 2 * 9);
  });

  it('keeps scales and nibbles of Q4_0: a block by hand', async () => {
    const cflow = await makeCflow(MODELS.llama!, 'q4_0');
    await run(cflow, beside(cflow, 'a.gguf'));
    const block = tensorBytes(await readFile(beside(cflow, 'a.gguf')), 'blk.0.ffn_up.weight').subarray(
      18,
      36,
    );
    const scaleBits = block.readUInt16LE(0);
    const sign = scaleBits & 0x8000 ? -1 : 1;
    const scale = sign * 2 ** (((scaleBits >> 10) & 31) - 25) * (1024 + (scaleBits & 1023));
    const values = Array.from({ length: 32 }, (_, i) => {
      const byte = block[2 + (i & 15)]!;
      return scale * ((i < 16 ? byte & 15 : byte >> 4) - 8);
    });
    expect((await ours(cflow, 'layers.0.ffn.up_proj.weight')).slice(32, 64)).toEqual(values.map(Math.fround));
  });

  it('puts the rows of q and k of a head in neighbouring pairs, those of others as they are', async () => {
    const cflow = await makeCflow(MODELS.biased!, 'f32');
    await run(cflow, beside(cflow, 'a.gguf'));
    const bytes = await readFile(beside(cflow, 'a.gguf'));
    // Heads of 16: GGUF's rows 0, 1, 2, 3 … are our rows 0, 8, 1, 9 …
    const order = [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15];
    const q = rowsOf(await ours(cflow, 'layers.0.attn.q_proj.weight'), 64);
    expect(rowsOf(f32Values(bytes, 'blk.0.attn_q.weight'), 64)).toEqual(
      q.map((_, i) => q[i - (i % 16) + order[i % 16]!]),
    );
    const bias = await ours(cflow, 'layers.0.attn.k_proj.bias');
    expect(f32Values(bytes, 'blk.0.attn_k.bias')).toEqual(
      bias.map((_, i) => bias[i - (i % 16) + order[i % 16]!]),
    );
    expect(f32Values(bytes, 'blk.0.attn_v.weight')).toEqual(await ours(cflow, 'layers.0.attn.v_proj.weight'));
  });

  it('reorders heads that reach over stripes of 128 rows', async () => {
    const wide = {
      ...MODELS.llama!,
      layers: [
        {
          ...MODELS.llama!.layers[0]!,
          attention: {
            ...MODELS.llama!.layers[0]!.attention,
            headDim: 96,
            scale: 96 ** -0.5,
            rope: { theta: 1e4, rotaryDim: 96 },
          },
        },
      ],
    };
    const cflow = await makeCflow(wide, 'q4_0');
    await run(cflow, beside(cflow, 'a.gguf'));
    await run(beside(cflow, 'a.gguf'), beside(cflow, 'b.cflow'));
    expect(await checksumsOf(beside(cflow, 'b.cflow'))).toEqual(await checksumsOf(cflow));
    const exact = await makeCflow(wide, 'f32');
    await run(exact, beside(exact, 'a.gguf'));
    const q = rowsOf(await ours(exact, 'layers.0.attn.q_proj.weight'), 64);
    const theirs = rowsOf(f32Values(await readFile(beside(exact, 'a.gguf')), 'blk.0.attn_q.weight'), 64);
    // Row 96 + 2·40 + 1 of the second head is our row 96 + 40 + 48.
    expect(theirs[177]).toEqual(q[184]);
    expect(theirs).toEqual(q.map((_, i) => q[i - (i % 96) + ((i % 96) >> 1) + (i % 2) * 48]));
  });

  it('merges the experts of a layer, in order', async () => {
    const cflow = await makeCflow(MODELS.olmoe!, 'f32');
    await run(cflow, beside(cflow, 'a.gguf'));
    const bytes = await readFile(beside(cflow, 'a.gguf'));
    const { metadata, tensors } = parseGguf(bytes);
    expect(metadata).toMatchObject({ 'olmoe.expert_count': 3, 'olmoe.expert_used_count': 2 });
    expect(tensors['blk.0.ffn_down_exps.weight']!.dims).toEqual([32, 64, 3]);
    const each = await Promise.all(
      [0, 1, 2].map((e) => ours(cflow, `layers.0.experts.${e}.down_proj.weight`)),
    );
    expect(f32Values(bytes, 'blk.0.ffn_down_exps.weight')).toEqual(each.flat());
    expect(tensors['blk.0.ffn_gate_inp.weight']!.type).toBe(0);
  });

  it('writes rows of broken groups as the numbers that they mean', async () => {
    const layer = MODELS.llama!.layers[0]!;
    const cflow = await makeCflow(
      { ...MODELS.llama!, layers: [{ ...layer, ffn: { ...layer.ffn!, dim: 72 } }] },
      'q4_0',
    );
    const { notes } = await run(cflow, beside(cflow, 'a.gguf'));
    expect(notes[0]).toContain('1 tensors with rows of no whole groups');
    const bytes = await readFile(beside(cflow, 'a.gguf'));
    expect(parseGguf(bytes).tensors['blk.0.ffn_down.weight']!.type).toBe(0);
    expect(f32Values(bytes, 'blk.0.ffn_down.weight')).toEqual(
      await ours(cflow, 'layers.0.ffn.down_proj.weight'),
    );
    await run(beside(cflow, 'a.gguf'), beside(cflow, 'b.cflow'));
    await run(beside(cflow, 'b.cflow'), beside(cflow, 'b.gguf'));
    expect(await readFile(beside(cflow, 'b.gguf'))).toEqual(bytes);
  });

  it('says llama3 scaling by divisors: short waves 1, long ones the factor', () => {
    // θ 10,000 over 8: wavelengths 6.28, 62.8, 628, 6283; of a context of 64 waves over 64 are long, below 16 short.
    const rope = { theta: 10_000, rotaryDim: 8 };
    const factors = llama3Factors(rope, {
      type: 'llama3',
      factor: 8,
      lowFreqFactor: 1,
      highFreqFactor: 4,
      originalContextLength: 64,
    });
    const smooth = (64 / (2 * Math.PI * 10) - 1) / 3;
    expect([...factors]).toEqual([1, Math.fround(1 / ((1 - smooth) / 8 + smooth)), 8, 8]);
  });

  it('bounds the context by a window that llama.cpp does not know', async () => {
    const cflow = await makeCflow(MODELS.mistral!, 'f32');
    const { notes } = await run(cflow, beside(cflow, 'a.gguf'));
    expect(notes).toContainEqual(expect.stringContaining('the context is 48 tokens instead of 128'));
    expect(parseGguf(await readFile(beside(cflow, 'a.gguf'))).metadata['llama.context_length']).toBe(48);
  });

  it.each([
    ['the report’s own models', PRESETS.arch2_4!, 'does not compute'],
    [
      'another activation',
      change('llama', { ffn: { dim: 96, activation: 'gelu' } }),
      'layers.0.ffn.activation',
    ],
    ['another attention scale', change('qwen3', {}, { scale: 1 }), 'layers.0.attention.scale'],
    [
      'routing weights that sum to 1',
      change('olmoe', { experts: { count: 3, topK: 2, dim: 32, activation: 'silu', normalizeTopK: true } }),
      'experts.normalizeTopK',
    ],
    [
      'llama3 scaling of a Qwen',
      change(
        'qwen3',
        {},
        {
          rope: {
            theta: 1e6,
            rotaryDim: 32,
            scaling: {
              type: 'llama3',
              factor: 8,
              lowFreqFactor: 1,
              highFreqFactor: 4,
              originalContextLength: 64,
            },
          },
        },
      ),
      'rope.scaling',
    ],
    ['fewer keys than heads in OLMoE', change('olmoe', {}, { kvHeads: 2 }), 'as many key/value heads'],
    ['a soft-cap of scores', change('llama', {}, { softcap: 30 }), 'attention.softcap'],
    [
      'partial rotation',
      change('llama', {}, { rope: { theta: 1e4, rotaryDim: 8 } }),
      'rotation of whole heads',
    ],
    [
      'windows in another pattern',
      { ...MODELS.gemma3_text!, layers: MODELS.gemma3_text!.layers.slice(1) },
      'slidingWindow',
    ],
  ])('refuses %s, with the reason', (_, config, reason) => {
    const plan = () => planGguf(parseModelConfig(config), 'f32', []);
    expect(plan).toThrowError(expect.objectContaining({ code: 'UNSUPPORTED' }));
    expect(plan).toThrowError(reason);
  });

  it('leaves nothing of a damaged source', async () => {
    const cflow = await makeCflow(MODELS.llama!, 'q4_0');
    const bytes = await readFile(cflow);
    bytes[bytes.length - 5]! ^= 1;
    const damaged = await saved(bytes, 'model.cflow');
    await expect(run(damaged, beside(damaged, 'a.gguf'))).rejects.toMatchObject({ code: 'VERIFY_FAILED' });
    await expect(readFile(beside(damaged, 'a.gguf'))).rejects.toThrowError('ENOENT');
  });
});

/** A model of MODELS with another first layer. */
function change(name: string, layer: object, attention: object = {}) {
  const config = MODELS[name]!;
  const [first] = config.layers;
  return { ...config, layers: [{ ...first!, ...layer, attention: { ...first!.attention, ...attention } }] };
}

describe('round trips', () => {
  it.each(Object.keys(MODELS))('%s: .cflow → GGUF → .cflow → GGUF, q4_0', async (name) => {
    const cflow = await makeCflow(MODELS[name]!, 'q4_0');
    await run(cflow, beside(cflow, 'a.gguf'));
    await run(beside(cflow, 'a.gguf'), beside(cflow, 'b.cflow'), { verify: true });
    expect(await checksumsOf(beside(cflow, 'b.cflow'))).toEqual(await checksumsOf(cflow));
    await run(beside(cflow, 'b.cflow'), beside(cflow, 'b.gguf'));
    expect(await readFile(beside(cflow, 'b.gguf'))).toEqual(await readFile(beside(cflow, 'a.gguf')));
  });

  it.each(['q8_0', 'f16', 'f32'] as const)('%s', async (dtype) => {
    const cflow = await makeCflow(MODELS.mixtral!, dtype);
    await run(cflow, beside(cflow, 'a.gguf'));
    await run(beside(cflow, 'a.gguf'), beside(cflow, 'b.vflow'));
    await run(beside(cflow, 'b.vflow'), beside(cflow, 'b.gguf'));
    expect(await readFile(beside(cflow, 'b.gguf'))).toEqual(await readFile(beside(cflow, 'a.gguf')));
  });

  it.each(Object.keys(MODELS))('%s: the configuration comes back', async (name) => {
    const config = parseModelConfig(MODELS[name]);
    const { head, tensors, fileBytes } = planGguf(config, 'f32', []);
    const bytes = Buffer.alloc(fileBytes);
    bytes.set(head);
    for (const { values, offset } of tensors)
      if (values) bytes.set(new Uint8Array(values.buffer), head.length + offset);
    const back = (await openGguf(inMemory(bytes))).config;
    const { bosTokenId: _, eosTokenIds: __, ...rest } = config;
    const windowless = name === 'mistral';
    const same = windowless ? { ...rest, family: 'llama', contextLength: 48, layers: back.layers } : rest;
    expect(back).toEqual({ ...same, eosTokenIds: [] });
  });
});

/** A llama of one layer in the hand of this test: hidden 32, 2 heads of 16, ffn 64, vocabulary 40. */
function handmade(type: number, encode: (values: number[]) => Uint8Array) {
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

const bf16 = (values: number[]) => {
  const words = new Uint32Array(Float32Array.from(values).buffer);
  return new Uint8Array(Uint16Array.from(words, (word) => word >>> 16).buffer);
};
const f32Bytes = (values: number[]) => new Uint8Array(Float32Array.from(values).buffer);
const keptOfBf16 = (value: number) => {
  const word = new Uint32Array(Float32Array.of(value).buffer);
  word[0]! &= 0xffff0000;
  return new Float32Array(word.buffer)[0]!;
};

describe('import', () => {
  it('reads what others write: defaults of absent keys, q back in split halves', async () => {
    const { metadata, tensors } = handmade(0, f32Bytes);
    const path = await saved(ggufFile(metadata, tensors));
    await run(path, beside(path, 'a.cflow'));
    const source = await openFileSource(beside(path, 'a.cflow'));
    const { config, dtype } = await openModel(source);
    await source.close();
    expect(dtype).toBe('f32');
    expect(config).toMatchObject({
      family: 'llama',
      hiddenDim: 32,
      vocabSize: 40,
      tiedEmbeddings: true,
      normEps: 1e-6,
    });
    expect(config.layers[0]!.attention).toMatchObject({
      headDim: 16,
      rope: { theta: 10_000, rotaryDim: 16 },
    });
    const stored = rowsOf([...Float32Array.from(noise(32 * 32, 4))], 32);
    const q = rowsOf(await ours(beside(path, 'a.cflow'), 'layers.0.attn.q_proj.weight'), 32);
    // Our row 9 of the first head pairs with row 1, and stands behind it: GGUF's row 3.
    expect(q[9]).toEqual(stored[3]);
    expect(q).toEqual(stored.map((_, i) => stored[i - (i % 16) + 2 * (i % 8) + (i % 16 >= 8 ? 1 : 0)]));
  });

  it('keeps BF16 exactly, in f32 unless told otherwise', async () => {
    const { metadata, tensors } = handmade(30, bf16);
    const path = await saved(ggufFile(metadata, tensors, 2));
    await run(path, beside(path, 'a.cflow'));
    const expected = noise(64 * 32, 10).map(keptOfBf16);
    expect(await ours(beside(path, 'a.cflow'), 'layers.0.ffn.down_proj.weight')).toEqual(expected);
    await run(path, beside(path, 'b.cflow'), { dtype: 'q8_0' });
    const close = await ours(beside(path, 'b.cflow'), 'layers.0.ffn.down_proj.weight');
    for (const [i, value] of close.entries())
      expect(Math.abs(value - expected[i]!)).toBeLessThan(0.5 / 254 + 1e-4);
  });

  it('refuses other quantizations by name, with counts and a remedy', async () => {
    const { metadata, tensors } = handmade(0, f32Bytes);
    tensors['blk.0.ffn_up.weight']!.type = 12;
    tensors['blk.0.ffn_gate.weight']!.type = 12;
    tensors['token_embd.weight']!.type = 14;
    const opened = openGguf(inMemory(ggufFile(metadata, tensors)));
    await expect(opened).rejects.toMatchObject({ code: 'UNSUPPORTED' });
    await expect(opened).rejects.toThrowError(/Q6_K \(1\), Q4_K \(2\).*llama-quantize --pure/);
  });

  it('names every tensor that is missing, surplus or of another shape', async () => {
    const { metadata, tensors } = handmade(0, f32Bytes);
    const { 'blk.0.attn_v.weight': _, ...rest } = tensors;
    rest['blk.0.ffn_norm.weight'] = { dims: [16], type: 0, bytes: new Uint8Array(64) };
    rest['blk.0.attn_sinks.weight'] = { dims: [2], type: 0, bytes: new Uint8Array(8) };
    const opened = openGguf(inMemory(ggufFile(metadata, rest)));
    await expect(opened).rejects.toMatchObject({ code: 'TENSOR_MISMATCH' });
    for (const part of [
      'missing blk.0.attn_v.weight',
      'blk.0.ffn_norm.weight is [16], not [32]',
      'surplus blk.0.attn_sinks.weight',
    ]) {
      await expect(opened).rejects.toThrowError(part);
    }
  });

  it.each([
    ['an architecture without a row', { 'general.architecture': text('mamba') }, 'UNSUPPORTED', 'mamba'],
    ['a missing key', { 'llama.block_count': text('1') }, 'CONFIG_INVALID', 'llama.block_count'],
    [
      'heads that differ',
      { 'llama.attention.head_count': list(4, [2, 1]) },
      'UNSUPPORTED',
      'differs from layer',
    ],
    ['YaRN of an unknown kind', { 'llama.rope.scaling.type': text('longrope') }, 'UNSUPPORTED', 'longrope'],
    ['one part of many', { 'split.count': u32(3) }, 'UNSUPPORTED', 'llama-gguf-split --merge'],
    ['a bad alignment', { 'general.alignment': u32(48) }, 'FORMAT_INVALID', 'power of two'],
  ])('refuses %s', async (_, extra, code, words) => {
    const { metadata, tensors } = handmade(0, f32Bytes);
    const opened = openGguf(inMemory(ggufFile({ ...metadata, ...extra }, tensors)));
    await expect(opened).rejects.toMatchObject({ code });
    await expect(opened).rejects.toThrowError(words);
  });

  it('refuses infinite scales and weights that are copied', async () => {
    const { metadata, tensors } = handmade(0, f32Bytes);
    const bytes = tensors['blk.0.ffn_up.weight']!.bytes;
    new DataView(bytes.buffer).setFloat32(4 * (32 * 3 + 7), Number.NaN, true);
    const path = await saved(ggufFile(metadata, tensors));
    const converted = run(path, beside(path, 'a.cflow'));
    await expect(converted).rejects.toMatchObject({ code: 'NONFINITE_WEIGHT' });
    await expect(converted).rejects.toThrowError('weight [3, 7]');
  });

  it('refuses options that say nothing here', async () => {
    const path = await saved(Buffer.from('GGUF'));
    const usage = { code: 'USAGE' };
    await expect(run(path, beside(path, 'a.gguf'))).rejects.toMatchObject(usage);
    await expect(run(path, beside(path, 'a.cflow'), { model: 'arch2_4' })).rejects.toMatchObject(usage);
    await expect(run(dirname(path), beside(path, 'a.gguf'))).rejects.toMatchObject(usage);
  });
});

it('orders rows as a permutation of every head', () => {
  const rows = Array.from({ length: 24 }, (_, row) => ourRow({ headDim: 12, rotaryDim: 8 }, row));
  expect(rows.slice(0, 12)).toEqual([0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11]);
  expect(rows.slice(12)).toEqual(rows.slice(0, 12).map((row) => row + 12));
  expect(modelTensors(parseModelConfig(MODELS.llama)).length).toBe(20);
});
