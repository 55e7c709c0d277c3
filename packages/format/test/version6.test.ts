/** Files of version 6: round trips, what they hold that version 5 cannot, and every version and container from every other. */

import { draft, guardedSource, makeConfig, makeModel, memorySink } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import {
  type Container,
  type Dtype,
  type FormatVersion,
  type MetadataDraft,
  type ModelConfig,
  ModelWriter,
  modelTensors,
  openModel,
  parseModelConfig,
  readTensor,
  relayout,
  verifyModel,
} from '../src/index.js';

const CONTAINERS: Container[] = ['cflow', 'vflow'];
const CONFIGS: [string, ModelConfig][] = [
  ['dense', makeConfig({ experts: 0 })],
  ['experts only', makeConfig({ ffn: false, layers: 3, expertDelay: 1 })],
  ['both, delayed', makeConfig({ layers: 4, denseDelay: 1, expertDelay: 2 })],
  ['tied', makeConfig({ tied: true })],
  ['ragged', makeConfig({ hiddenDim: 257, vocabSize: 129, layers: 1 })],
  ['every optional tensor', makeConfig({ rich: true, slidingEvery: 2, layers: 4 })],
];

/** A thin model of one layer whose fields are given. */
function wide(layer: { ffn?: number; experts?: number; topK?: number }): ModelConfig {
  const config = makeConfig({ layers: 1, experts: layer.experts ?? 0, hiddenDim: 8, vocabSize: 32 });
  const [only] = config.layers;
  return parseModelConfig({
    ...config,
    layers: [
      {
        ...only,
        ...(layer.ffn ? { ffn: { ...only!.ffn, dim: layer.ffn } } : {}),
        ...(layer.experts ? { experts: { ...only!.experts, dim: 4, topK: layer.topK } } : {}),
      },
    ],
  });
}

async function faultsOf(bytes: Uint8Array) {
  const source = guardedSource(bytes);
  const faults = [];
  for await (const fault of verifyModel(source, await openModel(source))) faults.push(fault);
  return faults;
}

async function laidOut(bytes: Uint8Array, container: Container, version: FormatVersion): Promise<Uint8Array> {
  const sink = memorySink();
  const source = guardedSource(bytes);
  await relayout(source, await openModel(source), sink, { container, version });
  return sink.bytes();
}

describe.each(CONTAINERS)('.%s of version 6', (container) => {
  it.each(CONFIGS)('f32 is exact, and every byte is sound: %s', async (_, config) => {
    const { bytes, tensors, layout } = await makeModel(config, 'f32', container, { version: 6 });
    const source = guardedSource(bytes);
    const file = await openModel(source);
    expect(file.layout.version).toBe(6);
    expect(file.config).toEqual(config);
    expect(file.layout.regions.map(({ used: _, ...region }) => region)).toEqual(layout.regions);
    for (const { name } of modelTensors(config)) {
      expect(await readTensor(source, file, name)).toEqual(tensors.get(name));
    }
    expect(await faultsOf(bytes)).toEqual([]);
  });

  it('streams have the bytes of version 5 but for tile headers, and its order', async () => {
    const config = makeConfig({ layers: 4, denseDelay: 1, expertDelay: 2 });
    const five = await makeModel(config, 'q8_0', container, { version: 5 });
    const six = await makeModel(config, 'q8_0', container, { version: 6 });
    const streams = (made: typeof five) => made.layout.regions.filter(({ stream }) => stream);
    expect(streams(six).map(({ name, length }) => [name, length])).toEqual(
      streams(five).map(({ name, length }) => [name, length]),
    );
  });

  it('a flipped weight, document or byte of padding is found', async () => {
    const { bytes, layout } = await makeModel(makeConfig(), 'q4_0', container, { version: 6 });
    for (const name of ['layers.1.experts.2', 'settings']) {
      const copy = bytes.slice();
      const { offset } = layout.regions.find((region) => region.name === name)!;
      copy[offset]! ^= 1;
      if (name === 'settings') await expect(faultsOf(copy)).rejects.toMatchObject({ code: 'VERIFY_FAILED' });
      else expect((await faultsOf(copy)).at(-1)).toMatchObject({ region: name });
    }
    const gap = layout.regions.find(({ kind, length }) => kind === 'padding' && length > 9)!;
    const copy = bytes.slice();
    copy[gap.offset + 9] = 7;
    expect(await faultsOf(copy)).toEqual([
      { region: gap.name, offset: gap.offset + 9, problem: 'padding byte is 7, not 0' },
    ]);
  });
});

describe('what version 5 cannot hold', () => {
  it.each([
    ['512 experts, 10 of them a token', wide({ experts: 512, topK: 10 }), 'layers.0.experts.count is 512'],
    ['an FFN of 73,728', wide({ ffn: 73_728 }), 'layers.0.ffn.dim is 73728'],
  ])('is written as version 6: %s', async (_, config, problem) => {
    for (const container of CONTAINERS) {
      const { bytes, tensors } = await makeModel(config, 'q4_0', container);
      const source = guardedSource(bytes);
      const file = await openModel(source);
      expect(file.layout.version).toBe(6);
      expect(await faultsOf(bytes)).toEqual([]);
      const name = modelTensors(config)
        .filter(({ matrix }) => matrix === 'down' || matrix === 'expert_down')
        .at(-1)!.name;
      const worst = (await readTensor(source, file, name)).reduce(
        (most, value, i) => Math.max(most, Math.abs(value - tensors.get(name)![i]!)),
        0,
      );
      expect(worst).toBeLessThan(0.1);
      await expect(laidOut(bytes, container, 5)).rejects.toMatchObject({
        code: 'LIMIT_EXCEEDED',
        message: expect.stringContaining(`${problem}, version 5 of the format holds at most`),
      });
    }
  });

  it('version 5 stays the default of all else', async () => {
    for (const [, config] of CONFIGS) {
      const sink = memorySink();
      expect(
        new ModelWriter(sink, { dtype: 'q4_0', container: 'cflow', metadata: draft(config) }).layout.version,
      ).toBe(5);
    }
  });
});

describe('laying out anew', () => {
  const forms = CONTAINERS.flatMap((container) =>
    [5, 6].map((version) => ({ container, version: version as 5 | 6 })),
  );

  it.each(CONFIGS)(
    'gives the bytes of a direct conversion, from every form to every form: %s',
    async (_, config) => {
      const direct = new Map<unknown, Uint8Array>();
      for (const form of forms) {
        direct.set(form, (await makeModel(config, 'q4_0', form.container, { version: form.version })).bytes);
      }
      for (const from of forms) {
        for (const to of forms) {
          const bytes = await laidOut(direct.get(from)!, to.container, to.version);
          expect(
            Buffer.compare(bytes, direct.get(to)!),
            `${JSON.stringify(from)} → ${JSON.stringify(to)}`,
          ).toBe(0);
        }
      }
    },
  );

  it('keeps tokenizer, template, sampling defaults and extensions', async () => {
    const metadata: MetadataDraft = {
      ...draft(makeConfig()),
      tokenizer: { tokenizerJson: '{"x":"é"}', chatTemplate: '{{ x }}', vocabSize: 7 },
      generation: { temperature: 0.5 },
    };
    const five = await makeModel(makeConfig(), 'q4_0', 'cflow', { version: 5, metadata });
    const six = await laidOut(five.bytes, 'vflow', 6);
    const { metadata: kept } = await openModel(guardedSource(six));
    expect(kept).toMatchObject({ tokenizer: metadata.tokenizer, generation: metadata.generation });
    expect(Buffer.compare(await laidOut(six, 'cflow', 5), five.bytes)).toBe(0);
  });

  it('keeps extensions within version 6, and refuses version 5 of a file that has some', async () => {
    const metadata = { ...draft(makeConfig()), extensions: { licence: { name: 'MIT', since: [2026] } } };
    const { bytes } = await makeModel(makeConfig(), 'q4_0', 'cflow', { version: 6, metadata });
    const moved = await laidOut(bytes, 'vflow', 6);
    expect((await openModel(guardedSource(moved))).metadata.extensions).toEqual(metadata.extensions);
    await expect(laidOut(bytes, 'cflow', 5)).rejects.toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringContaining('version 5 of the format has no extensions'),
    });
  });

  it('does not copy a damaged source on, whichever the version', async () => {
    const { bytes, layout } = await makeModel(makeConfig(), 'q4_0', 'cflow', { version: 6 });
    const { offset, length } = layout.regions.find(({ name }) => name === 'layers.1.dense')!;
    bytes[offset + length - 1]! ^= 1;
    for (const version of [5, 6] as const) {
      await expect(laidOut(bytes, 'vflow', version)).rejects.toMatchObject({ code: 'VERIFY_FAILED' });
    }
  });
});

describe('a dtype of its own', () => {
  const config = makeConfig({ layers: 2 });
  const own = new Map<string, Dtype>([
    ['layers.1.ffn.down_proj.weight', 'q8_0'],
    ['layers.0.attn.k_proj.weight', 'f32'],
    ['layers.0.experts.1.up_proj.weight', 'f16'],
  ]);

  it.each(CONTAINERS)('is read and verified, and survives being laid out anew: .%s', async (container) => {
    const { bytes, tensors } = await makeModel(config, 'q4_0', container, { version: 6, dtypes: own });
    expect(await faultsOf(bytes)).toEqual([]);
    const source = guardedSource(bytes);
    const file = await openModel(source);
    expect(file.dtype).toBe('q4_0');
    const exact = 'layers.0.attn.k_proj.weight';
    expect(await readTensor(source, file, exact)).toEqual(tensors.get(exact));
    const other = container === 'cflow' ? 'vflow' : 'cflow';
    const moved = await laidOut(bytes, other, 6);
    expect(Buffer.compare(await laidOut(moved, container, 6), bytes)).toBe(0);
    await expect(laidOut(bytes, container, 5)).rejects.toMatchObject({ code: 'UNSUPPORTED' });
  });
});
