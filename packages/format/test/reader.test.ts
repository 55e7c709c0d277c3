import {
  draft,
  guardedSource,
  makeBareModel,
  makeConfig,
  makeModel,
  memorySink,
} from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import {
  type Container,
  DTYPE_NAMES,
  type Dtype,
  dequantizeStripe,
  encodeMetadata,
  exportSafetensors,
  type ModelConfig,
  memorySource,
  modelTensors,
  NO_EXPERT,
  openModel,
  quantizeStripe,
  readStream,
  readTensor,
  relayout,
  safetensorsBytes,
} from '../src/index.js';

const CONTAINERS: Container[] = ['cflow', 'vflow'];
const CONFIGS: [string, ModelConfig][] = [
  ['dense', makeConfig({ experts: 0 })],
  ['experts only', makeConfig({ ffn: false, layers: 3, expertDelay: 1 })],
  ['both, delayed', makeConfig({ layers: 4, denseDelay: 1, expertDelay: 2 })],
  ['delays longer than the model', makeConfig({ layers: 2, denseDelay: 3, expertDelay: 3 })],
  ['tied', makeConfig({ tied: true })],
  ['ragged', makeConfig({ hiddenDim: 257, vocabSize: 129, layers: 1 })],
  ['every optional tensor', makeConfig({ rich: true, slidingEvery: 2, layers: 4 })],
];
/** What a header alone can say. */
const BARE: [string, ModelConfig][] = CONFIGS.filter(([name]) => name !== 'every optional tensor');
const source = (bytes: Uint8Array) => guardedSource(bytes);

describe.each(CONTAINERS)('.%s round trip', (container) => {
  it.each(CONFIGS)('f32 is exact: %s', async (_, config) => {
    const { bytes, tensors, layout } = await makeModel(config, 'f32', container);
    const file = await openModel(source(bytes));
    expect(file.config).toEqual(config);
    expect(file.layout.regions).toEqual(layout.regions);
    expect(file.metadata.source).toEqual(draft(config).source);
    for (const { name } of modelTensors(config)) {
      expect(await readTensor(source(bytes), file, name)).toEqual(tensors.get(name));
    }
  });

  it.each(BARE)('without metadata: %s', async (_, config) => {
    const { bytes, tensors, layout } = makeBareModel(config, 'f32', container);
    const file = await openModel(source(bytes));
    expect(file.config).toEqual(config);
    expect(file.metadata.checksums).toEqual({});
    expect(file.layout.regions).toEqual(layout.regions);
    const name = 'layers.0.attn.k_proj.weight';
    expect(await readTensor(source(bytes), file, name)).toEqual(tensors.get(name));
  });

  it.each(DTYPE_NAMES)('%s reads what its tiles say', async (dtype: Dtype) => {
    const config = makeConfig({ experts: 0 });
    const { bytes, tensors } = await makeModel(config, dtype, container);
    const values = tensors.get('layers.1.ffn.gate_proj.weight')!;
    const id = { version: 5, layer: 1, matrixId: 4, expert: NO_EXPERT, rowOffset: 0 } as const;
    const tiles = quantizeStripe(dtype, values, 72, 40, id, { scaleSearch: false });
    const read = await readTensor(
      source(bytes),
      await openModel(source(bytes)),
      'layers.1.ffn.gate_proj.weight',
    );
    expect(read).toEqual(dequantizeStripe(dtype, tiles, 72, 40));
  });

  it('opening reads header, metadata and tables only', async () => {
    const { bytes, layout } = await makeModel(makeConfig({ layers: 4 }), 'f32', container);
    const counted = source(bytes);
    await openModel(counted);
    const head = layout.regions.find(({ kind }) => kind === 'stream')!.offset;
    expect(counted.requested).toBeLessThan(3 * head);
    expect(counted.requested).toBeLessThan(bytes.length / 4);
  });
});

describe('readStream and readTensor', () => {
  it('gives all tensors of a stream in order, and names what is not there', async () => {
    const { bytes } = await makeModel(makeConfig(), 'f32', 'cflow');
    const file = await openModel(source(bytes));
    const stream = await readStream(source(bytes), file, 'layers.0.experts.1');
    expect([...stream.keys()]).toEqual(
      ['gate', 'up', 'down'].map((name) => `layers.0.experts.1.${name}_proj.weight`),
    );
    await expect(readStream(source(bytes), file, 'x')).rejects.toThrow('no stream x');
    await expect(readTensor(source(bytes), file, 'y')).rejects.toThrow('no tensor y');
  });
});

describe('relayout', () => {
  it.each(CONFIGS)('gives the bytes that a conversion would, both ways: %s', async (_, config) => {
    for (const [from, to] of [CONTAINERS, [...CONTAINERS].reverse()] as [Container, Container][]) {
      const original = await makeModel(config, 'q4_0', from);
      const sink = memorySink();
      const counts: number[] = [];
      await relayout(source(original.bytes), await openModel(source(original.bytes)), sink, {
        container: to,
        onProgress: (bytes) => counts.push(bytes),
      });
      const direct = await makeModel(config, 'q4_0', to);
      expect(Buffer.compare(sink.bytes(), direct.bytes)).toBe(0);
      expect(counts.reduce((a, b) => a + b)).toBe(direct.bytes.length);
    }
  });

  it('does not copy a damaged source on', async () => {
    const { bytes, layout } = await makeModel(makeConfig(), 'q4_0', 'cflow');
    const dense = layout.regions.find(({ name }) => name === 'layers.1.dense')!;
    bytes[dense.offset + 5]! ^= 1;
    const file = await openModel(source(bytes));
    await expect(relayout(source(bytes), file, memorySink(), { container: 'vflow' })).rejects.toMatchObject({
      code: 'VERIFY_FAILED',
      message: expect.stringMatching(
        /^m\.cflow: layers\.1\.dense: at byte \d+: checksum is [0-9a-f]{8}, metadata say/,
      ),
    });
  });
});

describe('writer', () => {
  it('gives the same bytes for the same input', async () => {
    const [a, b] = [
      await makeModel(makeConfig(), 'q8_0', 'vflow'),
      await makeModel(makeConfig(), 'q8_0', 'vflow'),
    ];
    expect(Buffer.compare(a.bytes, b.bytes)).toBe(0);
  });

  it('writes checksums of node:zlib under the names of the regions', async () => {
    const { crc32 } = await import('node:zlib');
    const { bytes, layout } = await makeModel(makeConfig(), 'q4_0', 'cflow');
    const { metadata } = await openModel(source(bytes));
    const expected = layout.regions
      .filter(({ kind }) => kind === 'stream' || kind === 'expertTable')
      .map(({ name, offset, length }) => [
        name,
        crc32(bytes.subarray(offset, offset + length))
          .toString(16)
          .padStart(8, '0'),
      ]);
    expect(metadata.checksums).toEqual(Object.fromEntries(expected));
  });

  it('encodes metadata with keys in a fixed order', () => {
    const { config, source: from, converter } = draft(makeConfig());
    const a = encodeMetadata({ config, source: from, converter }, {});
    expect(encodeMetadata({ converter, source: from, config }, {})).toEqual(a);
  });
});

describe('export', () => {
  it('is a safetensors file: length, JSON, F32 data in the order of the header', async () => {
    const config = makeConfig({ layers: 1 });
    const { bytes, tensors } = await makeModel(config, 'f32', 'cflow');
    const file = await openModel(source(bytes));
    const out = Buffer.alloc(safetensorsBytes(file), 0xff);
    const sink = { name: 'out', write: async (at: number, piece: Uint8Array) => void out.set(piece, at) };
    expect(await exportSafetensors(memorySource(bytes), file, sink)).toBe(out.length);
    const length = Number(out.readBigUInt64LE(0));
    expect(length % 8).toBe(0);
    const { __metadata__, ...rows } = JSON.parse(out.subarray(8, 8 + length).toString('utf8'));
    expect(__metadata__.format).toBe('pt');
    expect(JSON.parse(__metadata__.config)).toEqual({ ...config, model_type: 'cflow' });
    expect(Object.keys(rows).sort()).toEqual([...tensors.keys()].sort());
    let end = 0;
    for (const { name, shape } of modelTensors(config)) {
      const row = rows[name];
      expect([row.dtype, row.shape]).toEqual(['F32', shape]);
      const [from, to] = row.data_offsets;
      const values = Array.from({ length: (to - from) / 4 }, (_, i) =>
        out.readFloatLE(8 + length + from + 4 * i),
      );
      expect(values).toEqual([...tensors.get(name)!]);
      end = Math.max(end, to);
    }
    expect(out.length).toBe(8 + length + end);
  });
});
