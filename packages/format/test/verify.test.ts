import { guardedSource, makeBareModel, makeConfig, makeModel } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import { type Fault, openModel, tileBytes, verifyModel } from '../src/index.js';

const CONFIG = makeConfig({ layers: 2, expertDelay: 1 });

async function faultsOf(bytes: Uint8Array): Promise<Fault[]> {
  const source = guardedSource(bytes);
  const faults: Fault[] = [];
  for await (const fault of verifyModel(source, await openModel(source))) faults.push(fault);
  return faults;
}

describe.each(['cflow', 'vflow'] as const)('verify .%s', (container) => {
  it('finds nothing in a sound file, with and without metadata, and reads every byte of weights once', async () => {
    const { bytes, layout } = await makeModel(CONFIG, 'q4_0', container);
    const source = guardedSource(bytes);
    const file = await openModel(source);
    const before = source.requested;
    for await (const fault of verifyModel(source, file)) expect(fault).toBeUndefined();
    const head = layout.regions
      .filter(({ kind }) => ['header', 'metadata', 'groupTable', 'layerTable'].includes(kind))
      .reduce((sum, { length }) => sum + length, 0);
    expect(source.requested - before).toBe(bytes.length - head);
    expect(await faultsOf(makeBareModel(CONFIG, 'q4_0', container).bytes)).toEqual([]);
  });

  it('a flipped weight: the checksum of its stream, at the start of the stream', async () => {
    const { bytes, layout } = await makeModel(CONFIG, 'q4_0', container);
    const region = layout.regions.find(({ name }) => name === 'layers.1.experts.2')!;
    bytes[region.offset + region.length - 1]! ^= 0x10;
    expect(await faultsOf(bytes)).toEqual([
      {
        region: 'layers.1.experts.2',
        offset: region.offset,
        problem: expect.stringMatching(/^checksum is [0-9a-f]{8}, metadata say [0-9a-f]{8}$/),
      },
    ]);
  });

  it('a tile header: the byte of the field, then the checksum', async () => {
    const { bytes, layout } = await makeModel(CONFIG, 'q4_0', container);
    const region = layout.regions.find(({ name }) => name === 'embedding')!;
    // The second stripe of [130, 40] has two rows.
    const second = region.offset + tileBytes('q4_0', 128, 40);
    bytes[second + 10] = 3;
    const [first, sum, ...rest] = await faultsOf(bytes);
    expect(first).toEqual({
      region: 'embedding',
      offset: second + 10,
      problem: 'embed_tokens.weight: TileHeader.tile_rows is 3, expected 2',
    });
    expect([sum?.region, sum?.offset, rest.length]).toEqual(['embedding', region.offset, 0]);
  });

  it('a padding byte: its own offset', async () => {
    const { bytes, layout } = await makeModel(CONFIG, 'q4_0', container);
    const { name, offset } = layout.regions
      .filter(({ kind, length }) => kind === 'padding' && length > 9)
      .at(-1)!;
    bytes[offset + 9] = 7;
    expect(await faultsOf(bytes)).toEqual([
      { region: name, offset: offset + 9, problem: 'padding byte is 7, not 0' },
    ]);
  });

  it('a norm, a plain tensor: the checksum', async () => {
    const { bytes, layout } = await makeModel(CONFIG, 'q4_0', container);
    const { offset } = layout.regions.find(({ name }) => name === 'final_norm')!;
    bytes[offset]! ^= 1;
    expect((await faultsOf(bytes)).map((fault) => [fault.region, fault.offset])).toEqual([
      ['final_norm', offset],
    ]);
  });

  it('all faults of a file, in file order', async () => {
    const { bytes, layout } = await makeModel(CONFIG, 'q8_0', container);
    const streams = layout.regions.filter(({ stream }) => stream);
    for (const { offset, length } of streams) bytes[offset + length - 1]! ^= 1;
    expect((await faultsOf(bytes)).map(({ region }) => region)).toEqual(streams.map(({ name }) => name));
  });

  it('a swapped expert pair: tile headers name the wrong expert', async () => {
    const { bytes, layout } = makeBareModel(CONFIG, 'f32', container);
    const [a, b] = [0, 1].map((e) => layout.regions.find(({ name }) => name === `layers.0.experts.${e}`)!);
    bytes.copyWithin(a!.offset, b!.offset, b!.offset + b!.length);
    const faults = await faultsOf(bytes);
    expect(faults.map(({ problem }) => problem)).toEqual(
      ['gate', 'up', 'down'].map(
        (name) => `layers.0.experts.0.${name}_proj.weight: TileHeader.expert_id is 1, expected 0`,
      ),
    );
    expect(faults[0]?.offset).toBe(a!.offset + 3);
  });
});
