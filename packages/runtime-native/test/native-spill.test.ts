/** Keys and values beyond their memory: `cacheMemory` and `spillDirectory` of the native engine. */
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buildPlan, type ModelConfig, memorySource, modelTensors, openModel } from '@cflow/format';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { makeConfig, makeTensors } from '../../format/test/support.js';
import type { EngineOptions } from '../src/engine.js';
import { Model } from '../src/model.js';
import { addonProblem } from '../src/native/addon.js';
import { configureTiers } from '../src/tiers/configure.js';
import { type ModelSizes, modelSizes } from '../src/tiers/estimate.js';
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

describe('the memory of keys and values', () => {
  const planOf = (config: ModelConfig) => buildPlan(config, { transfers: 'none' });

  it('is estimated: with all, and with all on disk that can be', async () => {
    const config = makeConfig({ layers: 8, experts: 0, slidingEvery: 4 });
    const values = makeTensors(config);
    const tensors = new Map(
      modelTensors(config).map(({ name, shape }) => [name, { shape: [...shape], values: values.get(name)! }]),
    );
    const source = memorySource(await modelBytes(config, tensors));
    const sizes = modelSizes(planOf(config), await openModel(source), 640, 2);
    // Six windows of 16 positions, two caches of 640: as many as staging areas, so nothing is gained.
    const position = 2 * 2 * 16;
    expect(sizes.cacheBytes).toBe((6 * 16 + 2 * 640) * position);
    expect(sizes.leastCacheBytes).toBe(sizes.cacheBytes);
    const even = modelSizes(planOf(makeConfig({ layers: 8, experts: 0 })), await openModel(source), 640, 2);
    // Two pages of each of eight caches; eight pages in each of two areas.
    expect(even.cacheBytes).toBe(8 * 640 * position);
    expect(even.leastCacheBytes).toBe((8 * 2 + 2 * 8) * 64 * position);
  });

  const SIZES: ModelSizes = {
    fileBytes: 2e9,
    plainBytes: 0,
    streams: ['a', 'b', 'c', 'd'].map((name) => ({ name, bytes: 200e6, vocabulary: false })),
    experts: undefined,
    lookedUp: 0,
    cacheBytes: 900e6,
    leastCacheBytes: 200e6,
    tokenBytes: 1000,
  };
  const configured = (budget: number, sizes = SIZES) =>
    configureTiers(sizes, { budget, used: 100e6, maxBatch: 512, liveStreams: 1 });
  /** One stream, to whole blocks of 4,096 bytes; the process; the vectors of one token. */
  const REST = 200_003_584 + 100e6 + 1000;

  it('is what the least weights leave', () => {
    // 4 % of a budget are spare.
    const plan = configured(1e9);
    expect(plan.cacheMemory).toBe(960e6 - REST);
    expect(plan.memory.caches).toBe(960e6 - REST);
    expect(plan.rule).toContain('660.00 MB of 900.00 MB of keys and values are in memory');
    expect(configured(1.3e9)).not.toHaveProperty('cacheMemory');
  });

  it('is no less than what works, which is named', () => {
    const limit = Math.ceil((REST + 200e6) / 0.96 / 1e6) * 1e6;
    expect(() => configured(limit - 1e6)).toThrow(`the model needs ${limit / 1e6}.00 MB at least`);
    expect(configured(limit).cacheMemory).toBeGreaterThanOrEqual(200e6);
    const { leastCacheBytes: _, ...all } = SIZES;
    expect(() => configured(1e9, all)).toThrow('the model needs 1.25 GB at least');
  });
});
