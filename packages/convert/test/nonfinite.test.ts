/** Weights of checkpoints that are no numbers: what they are called, and how many became 0. */
import { join } from 'node:path';
import {
  directory,
  safetensors,
  type TestTensor,
  TINY_CONFIG,
  tinyTensors,
} from '@cflow/test-kit/checkpoint';
import { expect, it } from 'vitest';
import { convert } from '../src/index.js';

const UP = 'model.layers.0.mlp.up_proj.weight';
const NORM = 'model.norm.weight';

async function converted(tensors: Record<string, TestTensor>, options: object = {}) {
  const dir = await directory({ 'config.json': TINY_CONFIG, 'model.safetensors': safetensors(tensors) });
  return convert({ source: dir, output: join(dir, 'm.cflow'), dtype: 'f32', threads: 1, ...options });
}

/** The same tensors in two bytes: 1, but for one weight. */
function halves(name: string, dtype: 'F16' | 'BF16', index: number, bits: number) {
  const tensors = tinyTensors();
  const { shape } = tensors[name]!;
  const words = new Uint16Array(shape.reduce((a, b) => a * b, 1)).fill(dtype === 'F16' ? 0x3c00 : 0x3f80);
  words[index] = bits;
  return { ...tensors, [name]: { dtype, shape, raw: new Uint8Array(words.buffer) } };
}

it.each([
  ['F16', 'Infinity', 0x7c00],
  ['F16', '-Infinity', 0xfc00],
  ['F16', 'NaN', 0x7c01],
  ['BF16', 'Infinity', 0x7f80],
  ['BF16', '-Infinity', 0xff80],
  ['BF16', 'NaN', 0xffc0],
] as const)('%s: %s is called that', async (dtype, name, bits) => {
  for (const output of ['f32', 'q4_0']) {
    await expect(converted(halves(UP, dtype, 6 * 3 + 2, bits), { dtype: output })).rejects.toMatchObject({
      code: 'NONFINITE_WEIGHT',
      message: expect.stringContaining(`${UP}: weight [3, 2] is ${name} (`),
    });
  }
  await expect(converted(halves(NORM, dtype, 4, bits))).rejects.toThrow(`${NORM}: weight [4] is ${name} (`);
});

it.each<[string, Record<string, number[]>, string | undefined]>([
  ['none', {}, undefined],
  ['one', { [UP]: [7] }, '1 weight was NaN or infinite: stored as 0'],
  [
    'matrices, norms and the embedding',
    { [UP]: [0, 29], [NORM]: [5], 'model.embed_tokens.weight': [41] },
    '4 weights were NaN or infinite: stored as 0',
  ],
])('counts what became 0: %s', async (_name, where, note) => {
  const tensors = tinyTensors();
  for (const [name, indices] of Object.entries(where)) {
    for (const index of indices)
      tensors[name]!.values![index] = index % 2 ? Number.NaN : Number.POSITIVE_INFINITY;
  }
  for (const dtype of ['f32', 'q4_0', 'q8_0', 'f16']) {
    const { notes } = await converted(tensors, { dtype, zeroNonfinite: true });
    expect(notes.filter((line) => line.includes('stored as 0'))).toEqual(note === undefined ? [] : [note]);
  }
});
