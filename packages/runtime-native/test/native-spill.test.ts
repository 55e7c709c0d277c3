/** Keys and values beyond their memory: `cacheMemory` and `spillDirectory` of the native engine. */
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { modelTensors } from '@cflow/format';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { makeConfig, makeTensors } from '../../format/test/support.js';
import type { EngineOptions } from '../src/engine.js';
import { Model } from '../src/model.js';
import { addonProblem } from '../src/native/addon.js';
import { modelBytes } from './model-file.js';

const LAYERS = 8;
/** Bytes of 64 positions of all layers as f32: keys and values of two heads of 8. */
const PAGES = 64 * 2 * 2 * 8 * 4 * LAYERS;
const ids = Array.from({ length: 520 }, (_, i) => (7 * i + 3) % 50);

let directory: string;
let path: string;
beforeAll(async () => {
  expect(addonProblem(), 'the addon is built by npm run build').toBe('');
  directory = await mkdtemp(join(tmpdir(), 'cflow-spill-'));
  path = join(directory, 'model.cflow');
  const config = makeConfig({ layers: LAYERS, experts: 0 });
  const values = makeTensors(config);
  const tensors = new Map(
    modelTensors(config).map(({ name, shape }) => {
      const damped = values.get(name)!.map((x) => (name.includes('norm') ? 1 + x / 4 : x / 4));
      return [name, { shape: [...shape], values: damped }];
    }),
  );
  await writeFile(path, await modelBytes(config, tensors));
});
afterAll(() => rm(directory, { recursive: true }));

/** Passes 440 ids at once and the rest one by one; the logits of each call, and the figures. */
async function run(options: EngineOptions) {
  const model = await Model.open(path, { engine: 'native', weights: 'mapped', cache: 'f32', ...options });
  try {
    const session = model.createSession();
    await session.prefill(ids.slice(0, 440));
    const logits = [[...session.logits()]];
    for (const id of ids.slice(440)) {
      await session.decode(id);
      logits.push([...session.logits()]);
    }
    return { logits, stats: session.stats() };
  } finally {
    await model.close();
  }
}

describe('key/value caches beyond their memory', () => {
  it('give the output of those in memory, and keep to it', async () => {
    const all = await run({});
    expect(all.stats.cacheBytes).toBe(9 * PAGES);
    expect(all.stats.native!.tiers).toMatchObject({ cacheWritten: 0, cacheRead: 0 });
    const cacheMemory = 7.5 * PAGES;
    const spilled = await run({ cacheMemory, spillDirectory: directory });
    expect(spilled.logits).toEqual(all.logits);
    expect(spilled.stats.cacheBytes).toBeLessThanOrEqual(cacheMemory);
    const { cacheWritten, cacheRead, cacheBusySeconds } = spilled.stats.native!.tiers;
    expect(cacheWritten).toBeGreaterThanOrEqual(2 * PAGES);
    expect(cacheWritten).toBeLessThanOrEqual(8 * PAGES);
    expect(cacheRead).toBeGreaterThan(cacheWritten);
    expect(cacheBusySeconds).toBeGreaterThan(0);
    // Its file has no name.
    expect(await readdir(directory)).toEqual(['model.cflow']);
  });

  it('fail with what would do', async () => {
    // 440 positions, one by one: one page of all layers, and six in each of two areas.
    const least = PAGES + (2 * 6 * PAGES) / LAYERS;
    await expect(run({ cacheMemory: least - 1, maxBatch: 1 })).rejects.toMatchObject({
      code: 'MEMORY',
      message: expect.stringContaining(`${least - 1} are allowed`),
    });
  });

  it('fail with the directory that cannot be written', async () => {
    const nowhere = join(directory, 'nowhere');
    await expect(run({ cacheMemory: 7.5 * PAGES, spillDirectory: nowhere })).rejects.toMatchObject({
      code: 'WRITE_FAILED',
      message: expect.stringContaining(nowhere),
    });
  });

  it.each([0, -1, 1.5, '1'])('refuses a memory of %j', async (cacheMemory) => {
    await expect(run({ cacheMemory: cacheMemory as number })).rejects.toMatchObject({ code: 'USAGE' });
  });
});
