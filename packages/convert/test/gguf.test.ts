import { readFile } from 'node:fs/promises';
import { modelTensors, parseModelConfig } from '@cflow/format';
import { describe, expect, it } from 'vitest';
import { planGguf } from '../src/gguf/plan.js';
import { ourRow } from '../src/gguf/rope.js';
import { openGguf } from '../src/gguf/source.js';
import { beside, checksumsOf, inMemory, MODELS, makeCflow, run } from './gguf-fixture.js';

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

it('orders rows as a permutation of every head', () => {
  const rows = Array.from({ length: 24 }, (_, row) => ourRow({ headDim: 12, rotaryDim: 8 }, row));
  expect(rows.slice(0, 12)).toEqual([0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11]);
  expect(rows.slice(12)).toEqual(rows.slice(0, 12).map((row) => row + 12));
  expect(modelTensors(parseModelConfig(MODELS.llama)).length).toBe(20);
});
