/** Passes over a file: which bytes, in which order, and that they were read. */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type ModelFile, openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { loadAddon, type RegionsOptions } from '@cflow/runtime-native';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { resultSchema } from '../src/harness/result.js';
import { measureQuick } from '../src/storage/command.js';
import { regionsInOrder } from '../src/storage/regions.js';
import {
  allPasses,
  benchStorage,
  passName,
  repeated,
  storageMeasured,
} from '../src/storage/storage-bench.js';
import { modelOf } from '../src/synth/geometry.js';
import { synthesizeModel } from '../src/synth/synth-model.js';

const addon = loadAddon()!;
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
    ['block', { block: 4097 }],
    ['block', { block: 0 }],
    ['depth', { depth: 257 }],
  ] as const)('refuses another %s', (field, change) => {
    expect(() => addon.readRegions(source.fd!, new Float64Array(), { ...READ, ...change })).toThrow(field);
  });
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
  const { metrics } = await measureQuick({ model: path, directory });
  expect(metrics.filter(({ name }) => name.endsWith('.vflow by .cflow'))).toHaveLength(8);
});
