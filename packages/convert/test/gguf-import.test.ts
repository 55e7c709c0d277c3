import { dirname } from 'node:path';
import { openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { describe, expect, it } from 'vitest';
import { openGguf } from '../src/gguf/source.js';
import {
  beside,
  f32Bytes,
  ggufFile,
  handmade,
  inMemory,
  list,
  noise,
  ours,
  rowsOf,
  run,
  saved,
  text,
  u32,
} from './gguf-fixture.js';

const bf16 = (values: number[]) => {
  const words = new Uint32Array(Float32Array.from(values).buffer);
  return new Uint8Array(Uint16Array.from(words, (word) => word >>> 16).buffer);
};
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
    ['a LoRA adapter', { 'general.type': text('adapter') }, 'UNSUPPORTED', 'llama-export-lora'],
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
