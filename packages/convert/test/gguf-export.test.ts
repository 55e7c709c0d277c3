import { readFile } from 'node:fs/promises';
import { PRESETS, parseModelConfig } from '@cflow/format';
import { parseGguf, tensorBytes, tensorValues } from '@cflow/test-kit/gguf';
import { describe, expect, it } from 'vitest';
import { planGguf } from '../src/gguf/plan.js';
import { llama3Factors } from '../src/gguf/rope.js';
import { beside, checksumsOf, MODELS, makeCflow, ours, rowsOf, run, saved } from './gguf-fixture.js';

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
    expect(rowsOf([...tensorValues(bytes, 'blk.0.attn_q.weight')], 64)).toEqual(
      q.map((_, i) => q[i - (i % 16) + order[i % 16]!]),
    );
    const bias = await ours(cflow, 'layers.0.attn.k_proj.bias');
    expect([...tensorValues(bytes, 'blk.0.attn_k.bias')]).toEqual(
      bias.map((_, i) => bias[i - (i % 16) + order[i % 16]!]),
    );
    expect([...tensorValues(bytes, 'blk.0.attn_v.weight')]).toEqual(
      await ours(cflow, 'layers.0.attn.v_proj.weight'),
    );
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
    const theirs = rowsOf(
      [...tensorValues(await readFile(beside(exact, 'a.gguf')), 'blk.0.attn_q.weight')],
      64,
    );
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
    expect([...tensorValues(bytes, 'blk.0.ffn_down_exps.weight')]).toEqual(each.flat());
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
    expect([...tensorValues(bytes, 'blk.0.ffn_down.weight')]).toEqual(
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
    ['clipped projections', change('olmoe', {}, { clipQkv: 8 }), 'attention.clipQkv'],
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
