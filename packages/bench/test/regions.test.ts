/** What readRegions is told by the raw addon is checked against its type and the file. */
import { mkdtemp, open, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { requireBenchAddon } from '../src/runner/addon.js';

const OPTIONS = { block: 4096, depth: 2, backend: 'threads', mode: 'buffered', prefetch: false } as const;
const { readRegions } = requireBenchAddon();
let directory: string;
let file: Awaited<ReturnType<typeof open>>;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-regions-'));
  await writeFile(join(directory, 'bytes'), new Uint8Array(20_000).fill(1));
  file = await open(join(directory, 'bytes'));
});
afterAll(async () => {
  await file.close();
  await rm(directory, { recursive: true });
});

it.each<[string, unknown, unknown]>([
  ['an array of another type', new Float32Array(2), OPTIONS],
  ['an array of bytes', new Uint8Array(16), OPTIONS],
  ['no array', { length: 2 }, OPTIONS],
  ['half a pair', Float64Array.of(0, 4096, 0), OPTIONS],
  ['an offset that is not a number', Float64Array.of(Number.NaN, 1), OPTIONS],
  ['a negative length', Float64Array.of(0, -1), OPTIONS],
  ['a fraction', Float64Array.of(0.5, 1), OPTIONS],
  ['no options', Float64Array.of(0, 4096), undefined],
  ['a prefetch that is not a boolean', Float64Array.of(0, 4096), { ...OPTIONS, prefetch: 'yes' }],
])('readRegions refuses %s', (_, regions, options) => {
  expect(() => readRegions(file.fd, regions as Float64Array, options as typeof OPTIONS)).toThrow(
    expect.objectContaining({ code: 'USAGE' }),
  );
});

it.each([
  ['a region beyond the file', Float64Array.of(16_384, 4096)],
  ['more pieces than memory holds', Float64Array.of(0, 2 ** 52)],
])('readRegions rejects %s', async (_, regions) => {
  await expect(readRegions(file.fd, regions, OPTIONS)).rejects.toMatchObject({ code: 'NOT_READABLE' });
});

it('regions that repeat, are empty, or end within a block are read to their ends', async () => {
  const read = await readRegions(file.fd, Float64Array.of(0, 8192, 4096, 0, 0, 8192, 8192, 11_808), OPTIONS);
  expect(read.bytes).toBe(8192 + 8192 + 11_808);
});
