/** What is said of a GGUF: bytes behind its tensors, a rotation without a type, types that change, weights that are no numbers. */
import { openFileSource } from '@cflow/format/node';
import { describe, expect, it } from 'vitest';
import { readGguf } from '../src/gguf/read.js';
import { openGguf } from '../src/gguf/source.js';
import { dryRun } from '../src/index.js';
import {
  beside,
  f32,
  f32Bytes,
  ggufFile,
  handmade,
  inMemory,
  list,
  MODELS,
  makeCflow,
  run,
  saved,
  text,
  u32,
} from './gguf-fixture.js';

const UP = 'blk.0.ffn_up.weight';
/** Scales of 1 and levels that are the index, of so many weights. */
const q8 = (weights: number) =>
  Uint8Array.from({ length: (weights / 32) * 34 }, (_, i) =>
    i % 34 === 0 ? 0 : i % 34 === 1 ? 0x3c : i % 34,
  );
/** Halves of 1, of so many weights. */
const halves = (weights: number) => Uint8Array.from({ length: 2 * weights }, (_, i) => (i % 2 ? 0x3c : 0));

describe('bytes behind the last tensor', () => {
  const { metadata, tensors } = handmade(0, f32Bytes);
  const whole = ggufFile(metadata, tensors);

  it.each([
    [1, '1 byte after the last tensor, blk.0.ffn_down.weight'],
    [4096, '4096 bytes after the last tensor, blk.0.ffn_down.weight'],
  ])('%d', async (surplus, message) => {
    const opened = openGguf(inMemory(Buffer.concat([whole, Buffer.alloc(surplus)])));
    await expect(opened).rejects.toMatchObject({ code: 'FORMAT_INVALID' });
    await expect(opened).rejects.toThrow(message);
  });

  it('padding of the last tensor may be there or not', async () => {
    const bytes = new Uint8Array(12);
    const padded = ggufFile({ 'general.architecture': text('llama') }, { a: { dims: [3], type: 0, bytes } });
    for (const file of [padded, padded.subarray(0, -20)]) {
      expect((await readGguf(inMemory(file))).tensors.size).toBe(1);
    }
    for (const file of [padded.subarray(0, -19), Buffer.concat([padded, bytes])]) {
      await expect(readGguf(inMemory(file))).rejects.toThrow('after the last tensor, a');
    }
  });
});

describe('scaling of the rotation, as llama.cpp reads it', () => {
  it.each<[string, Record<string, ReturnType<typeof f32>>, object | undefined]>([
    ['a factor and no type is linear', { 'rope.scaling.factor': f32(4) }, { type: 'linear', factor: 4 }],
    ['the older key', { 'rope.scale_linear': f32(2) }, { type: 'linear', factor: 2 }],
    ['a factor of 1', { 'rope.scaling.factor': f32(1) }, undefined],
    ['a factor of 0', { 'rope.scaling.factor': f32(0) }, undefined],
    ['the type none', { 'rope.scaling.type': text('none'), 'rope.scaling.factor': f32(4) }, undefined],
    ['nothing', {}, undefined],
  ])('%s', async (_name, keys, scaling) => {
    const { metadata, tensors } = handmade(0, f32Bytes);
    const own = Object.fromEntries(Object.entries(keys).map(([key, value]) => [`llama.${key}`, value]));
    const { config } = await openGguf(inMemory(ggufFile({ ...metadata, ...own }, tensors)));
    expect(config.layers[0]!.attention.rope).toEqual({
      theta: 1e4,
      rotaryDim: 16,
      ...(scaling && { scaling }),
    });
  });
});

describe('keys that nothing is computed by', () => {
  const opened = (own: Record<string, readonly [type: number, value: unknown, item?: number]>) => {
    const { metadata, tensors } = handmade(0, f32Bytes);
    const named = Object.fromEntries(Object.entries(own).map(([key, value]) => [`llama.${key}`, value]));
    return openGguf(inMemory(ggufFile({ ...metadata, ...named }, tensors)));
  };
  const bool = (value: boolean) => [7, value] as const;

  it.each([
    ['attention.causal', bool(false), bool(true)],
    ['attention.clamp_kqv', f32(8), f32(0)],
    ['attention.max_alibi_bias', f32(8), f32(0)],
    ['logit_scale', f32(0.5), f32(1)],
    ['embedding_scale', f32(12), f32(1)],
    ['residual_scale', f32(0.25), f32(1)],
    ['rope.scaling.attn_factor', f32(2), f32(1)],
    ['rope.scaling.yarn_attn_factor', f32(2), f32(1)],
  ])('%s is refused unless it is neutral', async (key, changed, neutral) => {
    await expect(opened({ [key]: changed })).rejects.toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringContaining(`llama.${key}`),
    });
    expect((await opened({ [key]: neutral })).keyNotes).toEqual([]);
  });

  it.each([
    ['attention.scale', f32(0.5), '0.5'],
    ['attn_logit_softcapping', f32(50), '50'],
    ['use_parallel_residual', bool(true), 'true'],
    ['rope.scaling.yarn_beta_fast', f32(16), '16'],
    ['rope.scaling.yarn_ext_factor', f32(0.5), '0.5'],
    ['expert_shared_count', u32(1), '1'],
    ['attention.sliding_window', list(4, [8, 0]), '[8,0]'],
    ['not.known.yet', text('new'), '"new"'],
  ])('%s is a note, which --strict refuses', async (key, value, shown) => {
    const note = `keys without effect: llama.${key} = ${shown}`;
    expect((await opened({ [key]: value })).keyNotes).toEqual([note]);
    const { metadata, tensors } = handmade(0, f32Bytes);
    const source = await saved(ggufFile({ ...metadata, [`llama.${key}`]: value }, tensors));
    expect((await dryRun({ source })).notes).toContain(note);
    await expect(run(source, beside(source, 'a.cflow'), { strict: true })).rejects.toThrow(note);
  });

  it('says nothing of keys that are used, neutral or of another architecture', async () => {
    const own = {
      ...{ vocab_size: u32(40), tensor_data_layout: text('x'), expert_used_count: u32(0) },
      ...{ 'rope.scaling.type': text('yarn'), 'rope.scaling.factor': f32(4) },
      ...{ 'rope.scaling.original_context_length': u32(16), 'rope.scaling.attn_factor': f32(2) },
      ...{ 'rope.scaling.yarn_beta_fast': f32(16), 'rope.scaling.yarn_beta_slow': f32(2) },
      ...{ final_logit_softcapping: f32(30), 'attention.scale': f32(0) },
    };
    expect((await opened(own)).keyNotes).toEqual([]);
  });

  it.each(Object.entries(MODELS))('has nothing to say of %s as it is written here', async (_name, config) => {
    const cflow = await makeCflow(config, 'f32');
    await run(cflow, beside(cflow, 'a.gguf'));
    const source = await openFileSource(beside(cflow, 'a.gguf'));
    try {
      expect((await openGguf(source)).keyNotes).toEqual([]);
    } finally {
      await source.close();
    }
  });
});

describe('types that change', () => {
  // Weights of matrices: 40·32 + 2·32·32 + 2·32·16 + 3·64·32 = 10,496, of which up has 2,048: 19.5 %.
  const file = async (change: Record<string, { type: number; bytes: Uint8Array }>, type = 8) => {
    const { metadata, tensors } = handmade(type, (values) => q8(values.length));
    for (const [name, tensor] of Object.entries(change)) Object.assign(tensors[name]!, tensor);
    return saved(ggufFile(metadata, tensors));
  };

  it('a line for each tensor, and the total', async () => {
    const source = await file({
      [UP]: { type: 0, bytes: new Uint8Array(4 * 2048) },
      'blk.0.attn_k.weight': { type: 1, bytes: halves(512) },
    });
    const expected = [
      'blk.0.attn_k.weight: F16 becomes q8_0, rounded anew',
      `${UP}: F32 becomes q8_0, rounded anew`,
      // 2,560 of 10,496.
      '2 tensors change their type to q8_0: 24.4 % of the weights; --dtype f32 keeps all of them',
    ];
    expect((await dryRun({ source })).notes).toEqual(expect.arrayContaining(expected));
    expect((await run(source, beside(source, 'a.cflow'))).notes).toEqual(expect.arrayContaining(expected));
  });

  it('exactly, where the output holds every value', async () => {
    const { metadata, tensors } = handmade(0, f32Bytes);
    Object.assign(tensors[UP]!, { type: 1, bytes: halves(2048) });
    const { notes } = await dryRun({ source: await saved(ggufFile(metadata, tensors)) });
    expect(notes).toEqual(
      expect.arrayContaining([
        `${UP}: F16 becomes f32, exactly`,
        '1 tensor changes its type to f32: 19.5 % of the weights',
      ]),
    );
  });

  it('the total alone where the dtype was asked for; nothing where none changes', async () => {
    const source = await file({});
    const typed = (notes: readonly string[]) => notes.filter((note) => /becomes|type to/.test(note));
    expect(typed((await dryRun({ source, dtype: 'q4_0' })).notes)).toEqual([
      '8 tensors change their type to q4_0: 100.0 % of the weights',
    ]);
    expect(typed((await dryRun({ source })).notes)).toEqual([]);
  });
});

describe('weights that are no numbers', () => {
  const withHalf = async (bits: number) => {
    const { metadata, tensors } = handmade(0, f32Bytes);
    const bytes = halves(2048);
    new DataView(bytes.buffer).setUint16(2 * (32 * 5 + 3), bits, true);
    Object.assign(tensors[UP]!, { type: 1, bytes });
    return saved(ggufFile(metadata, tensors));
  };

  it.each([
    ['Infinity', 0x7c00],
    ['-Infinity', 0xfc00],
    ['NaN', 0x7e00],
  ])('%s of F16 is called that', async (name, bits) => {
    const source = await withHalf(bits);
    // As it is copied, and as it is decoded.
    for (const dtype of ['f16', 'f32', 'q4_0']) {
      const work = run(source, beside(source, `${dtype}.cflow`), { dtype });
      await expect(work).rejects.toMatchObject({ code: 'NONFINITE_WEIGHT' });
      await expect(work).rejects.toThrow(new RegExp(`${UP}: weight \\[5, 3\\] is ${name} \\(`));
    }
  });

  it('are counted where they become 0: in matrices and in norms', async () => {
    const { metadata, tensors } = handmade(0, f32Bytes);
    for (const [name, indices] of Object.entries({ [UP]: [0, 70, 2047], 'output_norm.weight': [31] })) {
      const { bytes } = tensors[name]!;
      const view = new DataView(bytes.buffer);
      for (const index of indices) view.setFloat32(4 * index, Number.NEGATIVE_INFINITY, true);
    }
    const source = await saved(ggufFile(metadata, tensors));
    const { notes } = await run(source, beside(source, 'a.cflow'), { dtype: 'q8_0', zeroNonfinite: true });
    expect(notes).toContain('4 weights were NaN or infinite: stored as 0');
  });
});
