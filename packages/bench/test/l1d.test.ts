/** Misses of both layouts of a matrix: counted by hand, and the claim of the report. */
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { benchL1d, l1dMeasured } from '../src/research/l1d/bench.js';
import { parseMisses } from '../src/research/l1d/cachegrind.js';
import { cacheOfMachine, parseCache, REPORTED_CACHES } from '../src/research/l1d/l1d.js';
import {
  cacheText,
  KERNELS,
  simulate,
  WORKLOADS,
  widthOf,
  withoutHeaders,
} from '../src/research/l1d/simulate.js';
import { type CacheSimulation, requireBenchAddon } from '../src/runner/addon.js';
import { resultSchema } from '../src/runner/result.js';

const addon = requireBenchAddon();
const CASE: CacheSimulation = {
  dtype: 0,
  arithmetic: 'f32',
  rows: 128,
  cols: 256,
  stripeRows: 128,
  width: 8,
  first: { bytes: 2 ** 15, ways: 8 },
  second: { bytes: 2 ** 20, ways: 8 },
  prefetcher: false,
};

describe('the simulation of a product', () => {
  it('reads each line of one tile and of the vector once', async () => {
    const { weights, vectors } = await addon.simulateMatvec(CASE);
    // 18,448 bytes from the start of a page; 256 floats.
    expect([weights.misses, vectors.misses]).toEqual([289, 16]);
    expect([weights.missesBeyond, vectors.missesBeyond]).toEqual([289, 16]);
  });

  it('reads what a vector of 15 bits has for q4_0', async () => {
    const { weights, vectors } = await addon.simulateMatvec({ ...CASE, arithmetic: 'q8' });
    // 256 bytes of numbers, 256 of rests, 128 of what sums start at, the scales: 4 + 4 + 2 + 1 lines.
    expect([weights.misses, vectors.misses]).toEqual([289, 11]);
  });

  it('reads a vector that does not fit again for each row, or for each four rows', async () => {
    const small = { ...CASE, rows: 8, cols: 8192, first: { bytes: 2 ** 14, ways: 8 } };
    const one = await addon.simulateMatvec({ ...small, stripeRows: 1 });
    const four = await addon.simulateMatvec({ ...small, stripeRows: 4 });
    // 8,192 floats are 512 lines; the second cache keeps them.
    expect([one.vectors.misses, four.vectors.misses]).toEqual([8 * 512, 2 * 512]);
    expect([one.vectors.missesBeyond, four.vectors.missesBeyond]).toEqual([512, 512]);
  });

  it('gives the same counts every time', async () => {
    const tall = { ...CASE, rows: 384, cols: 2048, arithmetic: 'q8' as const };
    expect(await addon.simulateMatvec(tall)).toEqual(await addon.simulateMatvec(tall));
  });

  it('misses less with a prefetcher', async () => {
    const { weights } = await addon.simulateMatvec({ ...CASE, prefetcher: true });
    expect(weights.misses).toBeLessThan(289 / 4);
  });

  it.each([
    ['width', { width: 5 }],
    ['power of two', { first: { bytes: 3 * 2 ** 14, ways: 8 } }],
    ['stripeRows', { stripeRows: 129 }],
    ['no such combination', { arithmetic: 'q8', dtype: 3 }],
  ] as const)('refuses what it cannot simulate: %s', async (message, change) => {
    await expect(async () => addon.simulateMatvec({ ...CASE, ...change })).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringContaining(message) as string,
    });
  });
});

describe('the report', () => {
  const options = { isa: 'sse41', caches: REPORTED_CACHES, prefetcher: false, rows: 128 };
  const [down, projection] = WORKLOADS;
  const [report, four, q8] = KERNELS;

  it('is met by its own baseline: f32 activations, one row at a time', async () => {
    const { tiled, rowMajor, ratio } = await simulate(addon, down!, report!, options);
    // 8,192 rows, each of 2,048 lines of the vector; 151 MB of weights, once.
    expect(rowMajor.vectors).toBe(8192 * 2048);
    expect(rowMajor.total / 19.3e6).toBeCloseTo(1, 1);
    expect(tiled.total / 2.64e6).toBeCloseTo(1, 1);
    expect(ratio).toBeGreaterThan(6.7);
    expect(ratio).toBeLessThan(8);
  });

  it('is not met where the baseline shares the vector, or the vector fits', async () => {
    expect((await simulate(addon, down!, four!, options)).ratio).toBeLessThan(3);
    expect((await simulate(addon, projection!, q8!, { ...options, isa: 'avx2' })).ratio).toBeLessThan(2);
    const large = { ...options, caches: { ...REPORTED_CACHES, first: { bytes: 2 ** 16, ways: 8 } } };
    expect((await simulate(addon, projection!, report!, large)).ratio).toBeLessThan(1.1);
  });
});

describe('row-major tiles', () => {
  it('have a header in ten bytes', () => {
    // A row of 256 weights: 8 scales and 128 bytes behind 16 of header.
    expect(withoutHeaders(1, 8192)).toBeCloseTo(144 / 160, 12);
    expect(withoutHeaders(4, 256)).toBeCloseTo((4 * 144) / (4 * 144 + 16), 12);
  });
  it('are simulated with the vectors of the kernels', () => {
    expect(widthOf('avx2', 'q8')).toBe(8);
    expect(widthOf('avx512', 'q8')).toBe(16);
    expect(widthOf('avx512_vnni', 'f32')).toBe(16);
    expect(widthOf('avx512_vnni', 'q8')).toBe(0);
    expect(widthOf('neon', 'f32')).toBe(4);
  });
});

describe('sizes of caches', () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'caches-'));
    const caches = [
      ['1', 'Instruction', '32K', '8', '64'],
      ['1', 'Data', '48K', '12', '64'],
      ['2', 'Unified', '2048K', '16', '128'],
    ];
    for (const [i, values] of caches.entries()) {
      const names = ['level', 'type', 'size', 'ways_of_associativity', 'coherency_line_size'];
      await mkdir(join(folder, `index${i}`));
      for (const [j, name] of names.entries())
        await writeFile(join(folder, `index${i}`, name), `${values[j]}\n`);
    }
  });
  afterAll(() => rm(folder, { recursive: true }));

  it('are read as Linux tells them', async () => {
    expect(await cacheOfMachine(1, folder)).toEqual({ bytes: 49_152, ways: 12 });
  });
  it('are unknown where lines are others, or nothing is told', async () => {
    expect(await cacheOfMachine(2, folder)).toBeUndefined();
    expect(await cacheOfMachine(1, join(folder, 'none'))).toBeUndefined();
  });
  it('are options', () => {
    expect(parseCache('l1d', '1M/16')).toEqual({ bytes: 2 ** 20, ways: 16 });
    expect(cacheText({ bytes: 49_152, ways: 12 })).toBe('48K/12');
    expect(cacheText({ bytes: 2 ** 21, ways: 16 })).toBe('2M/16');
  });
  it.each(['32K', '32K/0', '33K/8', '48K/8', 'x/8', '-32K/8'])('are refused: %s', (text) => {
    expect(() => parseCache('l1d', text)).toThrow(/--l1d is .*expected bytes and ways/);
  });
});

describe('cachegrind', () => {
  it('tells read misses', () => {
    const summary = '==7== D1  misses:      1,234,567  (  1,204,321 rd   +    30,246 wr)';
    expect(parseMisses(summary)).toBe(1_204_321);
    expect(() => parseMisses('==7== I refs: 3')).toThrow('the output of cachegrind has no D1 read misses');
  });
});

it('measures all workloads as one result', async () => {
  const report = await benchL1d({
    isa: '',
    caches: [REPORTED_CACHES],
    simulatedRows: 8,
    timedRows: 128,
    runs: 2,
  });
  const { metrics, tables } = l1dMeasured(report);
  expect(resultSchema.shape.metrics.parse(metrics)).toHaveLength(5 * 3 + 5 * 2);
  expect(resultSchema.shape.tables.parse(tables)!.map(({ rows }) => rows.length)).toEqual([15, 10]);
  expect(tables![0]!.rows[0]!.slice(0, 2)).toEqual(['dense-down', 'f32, a row at a time']);
});
