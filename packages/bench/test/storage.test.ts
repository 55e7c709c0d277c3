/** Passes over a file: which bytes, in which order, and that they were read. */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type ModelFile, openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { allPasses, benchStorage, regionsInOrder, repeated } from '../src/experiments/storage/passes.js';
import { passName, storage, storageMeasured } from '../src/experiments/storage/storage.js';
import { type RegionsOptions, requireBenchAddon } from '../src/runner/addon.js';
import { resultSchema } from '../src/runner/result.js';
import { modelOf } from '../src/synth/geometry.js';
import { synthesizeModel } from '../src/synth/model.js';

const addon = requireBenchAddon();
const READ: RegionsOptions = { block: 65_536, depth: 3, backend: 'auto', mode: 'auto', prefetch: false };
let directory: string;
let path: string;
let bytes: Buffer;
let file: ModelFile;
let source: Awaited<ReturnType<typeof openFileSource>>;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-storage-test-'));
  path = join(directory, 'model.cflow');
  const geometry = { ...modelOf('arch2_4', { layers: 2 }, 1), vocabSize: 300 };
  await synthesizeModel({ target: path, format: 'cflow', dtype: 'q4_0', seed: 1, geometry });
  bytes = await readFile(path);
  source = await openFileSource(path);
  file = await openModel(source);
});
afterAll(async () => {
  await source.close();
  await rm(directory, { recursive: true });
});

/** XOR of the words of 8 bytes of each region, the last one filled up with zeros. */
function folded(regions: readonly (readonly [number, number])[]): bigint {
  let all = 0n;
  for (const [offset, length] of regions) {
    const words = Buffer.alloc(Math.ceil(length / 8) * 8);
    bytes.copy(words, 0, offset, offset + length);
    for (let at = 0; at < words.length; at += 8) all ^= words.readBigUInt64LE(at);
  }
  return all;
}

describe('reading regions', () => {
  const pairs: [number, number][] = [
    [4096, 100_001],
    [0, 4096],
    [65_536, 300_000],
    [8192, 7],
  ];
  it.each([
    READ,
    { ...READ, mode: 'buffered' as const },
    { ...READ, prefetch: true },
    { ...READ, block: 4096, depth: 1 },
    { ...READ, block: 2 ** 20, depth: 8, prefetch: true },
  ])('reads every byte of them: %o', async (options) => {
    const read = await addon.readRegions(source.fd!, Float64Array.from(pairs.flat()), options);
    expect(read.bytes).toBe(100_001 + 4096 + 300_000 + 7);
    expect(read.folded).toBe(folded(pairs));
    expect(read.seconds).toBeGreaterThan(0);
    if (options.mode === 'buffered') expect(read.direct).toBe(false);
  });

  it('reads up to the end of a file, and says where there is nothing more', async () => {
    const last: [number, number] = [4096, bytes.length - 4096];
    const read = await addon.readRegions(source.fd!, Float64Array.from(last), READ);
    expect(read.folded).toBe(folded([last]));
    const beyond = Float64Array.of(bytes.length + 8192, 4096);
    await expect(addon.readRegions(source.fd!, beyond, READ)).rejects.toMatchObject({ code: 'NOT_READABLE' });
  });

  it.each([
    ['block', { block: 0 }],
    ['depth', { depth: 257 }],
  ] as const)('refuses another %s', (field, change) => {
    expect(() => addon.readRegions(source.fd!, new Float64Array(), { ...READ, ...change })).toThrow(field);
  });

  it('refuses a ragged block, as every queue does', async () => {
    const reading = addon.readRegions(source.fd!, new Float64Array(), { ...READ, block: 4097 });
    await expect(reading).rejects.toMatchObject({ code: 'LIMIT_EXCEEDED' });
  });
});

describe('a file of known words', () => {
  /** Three blocks of 64 KiB: a bit at the first and the last word of each, and none elsewhere. */
  const BLOCK = 65_536;
  const bits = [0, 1, 2].flatMap((block) => [
    [block * BLOCK, 2 * block],
    [(block + 1) * BLOCK - 8, 2 * block + 1],
  ]) as [number, number][];
  let known: Awaited<ReturnType<typeof openFileSource>>;
  beforeAll(async () => {
    const words = Buffer.alloc(3 * BLOCK);
    for (const [at, bit] of bits) words.writeBigUInt64LE(1n << BigInt(bit), at);
    await writeFile(join(directory, 'known'), words);
    known = await openFileSource(join(directory, 'known'));
  });
  afterAll(() => known.close());

  it.each([
    ['all of it', [[0, 3 * BLOCK]], 0b111111n],
    ['the middle block', [[BLOCK, BLOCK]], 0b001100n],
    ['all but the last word', [[0, 3 * BLOCK - 8]], 0b011111n],
    ['from within the first block into the second', [[4096, BLOCK]], 0b000110n],
    [
      'the third block and then the first',
      [
        [2 * BLOCK, BLOCK],
        [0, BLOCK],
      ],
      0b110011n,
    ],
    [
      'the first block twice, which is nothing',
      [
        [0, BLOCK],
        [0, BLOCK],
      ],
      0n,
    ],
  ] as [string, [number, number][], bigint][])('%s', async (_, regions, folded) => {
    for (const change of [
      {},
      { block: 4096, depth: 2 },
      { block: 2 ** 18, depth: 1 },
      { mode: 'buffered' as const },
    ]) {
      const pairs = Float64Array.from(regions.flat());
      const read = await addon.readRegions(known.fd!, pairs, { ...READ, ...change });
      expect(read.folded.toString(2)).toBe(folded.toString(2));
      expect(read.bytes).toBe(regions.reduce((sum, [, length]) => sum + length, 0));
    }
  });
});

it('figures of passes, by hand', () => {
  const passes = allPasses(['cflow', 'vflow']).map((pass) => ({
    ...pass,
    bytes: 2e9,
    // Twice as fast where direct, 1.5 times in a .vflow, half as fast with prefetches.
    speeds: [1, 3, 2].map(
      (speed) =>
        speed *
        (pass.mode === 'direct' ? 2 : 1) *
        (pass.container === 'vflow' ? 1.5 : 1) *
        (pass.prefetch ? 0.5 : 1),
    ),
    reason: '',
  }));
  const sweep = [{ mode: 'direct', depth: 4, block: 65_536, speed: 1.25 }] as const;
  const { metrics, tables } = storageMeasured({ fileBytes: 3e9, block: 2 ** 20, depth: 4, passes, sweep });
  const figures = new Map(metrics.map(({ name, runs }) => [name, runs]));
  expect(figures.get('.vflow, direct, order of the plan, prefetch 1: read')).toEqual([1.5, 4.5, 3]);
  expect(figures.get('.vflow, direct, order of the plan, prefetch 1: prefetch 1 by 0')).toEqual([
    0.5, 0.5, 0.5,
  ]);
  expect(figures.get('.vflow, buffered, order of the file, prefetch 0: .vflow by .cflow')).toEqual([
    1.5, 1.5, 1.5,
  ]);
  expect(figures.get('blocks of 64 KiB, direct, 4 at once: read')).toEqual([1.25]);
  expect(tables![0]!.title).toBe('Passes over 3.00 GB, reads of 1024 KiB, 4 at once');
  expect(tables![0]!.rows).toContainEqual(['direct', 'plan', '.vflow', 1, 2000, 3, 1.5, 4.5]);
  expect(tables![1]!.rows).toEqual([['64 KiB', 1.25]]);
});

describe('orders', () => {
  it('of the file: every stream once, as it lies', () => {
    const regions = regionsInOrder(file, 'file');
    expect(regions).toHaveLength(file.streams.size);
    expect(regions.every(({ offset }, i) => i === 0 || offset > regions[i - 1]!.offset)).toBe(true);
  });

  it('of the plan: every stream of a token once, and two of eight experts a layer', () => {
    const names = regionsInOrder(file, 'plan').map(({ name }) => name);
    const experts = names.filter((name) => name.includes('.experts.'));
    expect(new Set(names).size).toBe(names.length);
    expect(experts.map((name) => name.split('.')[1])).toEqual(['0', '0', '1', '1']);
    const rest = [...file.streams.keys()].filter((name) => !name.includes('.experts.'));
    // The embedding is a row, not a stream that a token reads.
    const expected = rest.filter((name) => name !== 'embedding').sort();
    expect(names.filter((name) => !name.includes('.experts.')).sort()).toEqual(expected);
  });

  it('draws experts by a seed', () => {
    const draw = (seed: number) => regionsInOrder(file, 'plan', seed).map(({ name }) => name);
    expect(draw(1)).toEqual(draw(1));
    expect(draw(1)).not.toEqual(draw(2));
  });
});

it('repeats passes over a small model, an odd number of times', () => {
  const pairs = Float64Array.of(0, 100, 4096, 50);
  expect([...repeated(pairs, 150)]).toEqual([0, 100, 4096, 50]);
  expect(repeated(pairs, 151)).toHaveLength(3 * 4);
  expect(repeated(pairs, 600)).toHaveLength(5 * 4);
});

it('compares one thing at a time', async () => {
  const report = await benchStorage({
    model: path,
    directory,
    block: 262_144,
    depth: 2,
    runs: 2,
    bytes: 1,
    blocks: [16_384, 2 ** 30],
    milliseconds: 10,
  });
  const names = report.passes.map(passName);
  expect(names).toEqual(allPasses(['cflow', 'vflow']).map(passName));
  expect(new Set(names).size).toBe(16);
  // Blocks larger than the file are left out.
  expect(report.sweep.map(({ block }) => block)).toEqual([16_384, 16_384, 16_384, 16_384]);
  const { metrics, tables } = storageMeasured(report);
  expect(resultSchema.shape.metrics.parse(metrics)).toHaveLength(16 + 8 + 8 + 4);
  expect(resultSchema.shape.tables.parse(tables)).toHaveLength(2);
  const ratio = metrics.find(({ name }) => name === `${passName(report.passes[1]!)}: prefetch 1 by 0`)!;
  expect(ratio.runs[1]).toBeCloseTo(report.passes[1]!.speeds[1]! / report.passes[0]!.speeds[1]!, 12);
});

it('is quick for the scorecard', async () => {
  const { metrics } = await storage.quick!({ model: path, directory, threads: 1, quick: true });
  expect(metrics.filter(({ name }) => name.endsWith('.vflow by .cflow'))).toHaveLength(8);
});
