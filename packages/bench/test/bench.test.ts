import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openCheckpoint } from '@cflow/convert/internal/sources/checkpoint.js';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { benchConvert } from '../src/experiments/convert.js';
import { median } from '../src/runner/statistics.js';
import { splitTensors, synthesize } from '../src/synth/checkpoint.js';
import { geometryOf } from '../src/synth/geometry.js';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'cflow-bench-test-'));
});
afterEach(() => rm(dir, { recursive: true }));

const options = { geometry: 'llama-tiny', shards: 2, dtype: 'bf16', seed: 1 } as const;

async function digest(path: string): Promise<string> {
  const hash = createHash('sha256');
  for (const name of (await readdir(path)).sort()) hash.update(await readFile(join(path, name)));
  return hash.digest('hex');
}

it('writes a checkpoint that the converter accepts, of Gaussian weights and norms of one', async () => {
  const directory = join(dir, 'a');
  const { parameters, bytes } = await synthesize({ ...options, directory });
  // 2·523·72 + 72 + 3·(2·72 + 2·72·72 + 2·36·72 + 3·200·72)
  expect([parameters, bytes]).toEqual([252_072, 504_144]);
  const checkpoint = await openCheckpoint(directory);
  const weights = await checkpoint.rowsF32('lm_head.weight', 0, 523);
  const norm = await checkpoint.rowsF32('layers.2.ffn_norm.weight', 0, 72);
  await checkpoint.close();
  expect(new Set(norm)).toEqual(new Set([1]));
  const mean = weights.reduce((sum, w) => sum + w, 0) / weights.length;
  const deviation = Math.sqrt(weights.reduce((sum, w) => sum + w * w, 0) / weights.length);
  expect(Math.abs(mean)).toBeLessThan(0.001);
  expect(deviation).toBeGreaterThan(0.0195);
  expect(deviation).toBeLessThan(0.0205);
});

it('writes the same bytes for the same seed only, and no second time to the same place', async () => {
  const at = (name: string) => ({ ...options, directory: join(dir, name) });
  await synthesize(at('a'));
  await synthesize(at('b'));
  await synthesize({ ...at('c'), seed: 2 });
  expect(await digest(join(dir, 'b'))).toBe(await digest(join(dir, 'a')));
  expect(await digest(join(dir, 'c'))).not.toBe(await digest(join(dir, 'a')));
  await expect(synthesize(at('a'))).rejects.toMatchObject({ code: 'OUTPUT_EXISTS' });
  expect((await readdir(dir)).sort()).toEqual(['a', 'b', 'c']);
});

it('leaves nothing behind where it cannot go on', async () => {
  const directory = join(dir, 'a');
  await expect(synthesize({ ...options, directory, shards: 1000 })).rejects.toMatchObject({ code: 'USAGE' });
  await expect(synthesize({ ...options, directory, geometry: 'x' })).rejects.toMatchObject({ code: 'USAGE' });
  expect(await readdir(dir)).toEqual([]);
});

it('reaches a size by the number of layers', () => {
  const { config } = geometryOf('llama-1b', 2e9, 2);
  // 262.7 million in the embedding, 60.8 million a layer, two bytes each: 12 layers are 1.985 GB, 13 are 2.107.
  expect(config.layers.length).toBe(12);
});

it('splits tensors into the number of shards asked for, none empty', () => {
  const tensors = [100, 1, 1, 1].map((count, i) => ({ name: `${i}`, shape: [count], count }));
  for (const shards of [1, 2, 3, 4]) {
    const split = splitTensors(tensors, shards);
    expect(split.map((s) => s.length > 0)).toEqual(Array(shards).fill(true));
    expect(split.flat()).toEqual(tensors);
  }
});

it('measures conversions that agree', async () => {
  const source = join(dir, 'a');
  await synthesize({ ...options, directory: source });
  const report = await benchConvert({
    source,
    dtype: 'q4_0',
    container: 'cflow',
    scaleSearch: true,
    threads: [1, 2],
    runs: 1,
    directory: dir,
  });
  expect(report.sha256).toMatch(/^[0-9a-f]{64}$/);
  expect(report.rows.map(({ threads }) => threads)).toEqual([1, 2]);
  for (const { maxRssBytes } of report.rows) {
    expect(maxRssBytes).toBeGreaterThan(20 * 2 ** 20);
    expect(maxRssBytes).toBeLessThan(512 * 2 ** 20);
  }
  expect(await readdir(dir)).toEqual(['a']);
});

it('median', () => {
  expect(median([1, 2, 10])).toBe(2);
  expect(median([1, 2, 4, 10])).toBe(3);
});
