/** Keys and values beyond their memory: `cacheMemory` and `spillDirectory` of the native engine. */

import { access, constants, mkdtemp, readdir, rm, statfs, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buildPlan, type ModelConfig } from '@cflow/format';
import { captured } from '@cflow/test-kit/captured';
import { layoutOnly, makeConfig } from '@cflow/test-kit/models';
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest';
import { memoryText } from '#cli-kit/bytes.js';
import { main } from '../src/cli.js';
import type { EngineOptions } from '../src/engine-options.js';
import { Model } from '../src/model.js';
import { addonProblem } from '../src/native/addon.js';
import { spillDirectory } from '../src/native/options.js';
import { configureTiers } from '../src/tiers/configure.js';
import { type ModelSizes, modelSizes } from '../src/tiers/estimate.js';
import { modelBytes, quarter, randomTensors } from './model-file.js';

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
  await writeFile(path, await damped(makeConfig({ layers: LAYERS, experts: 0 })));
});
afterAll(() => rm(directory, { recursive: true }));

const damped = (config: ModelConfig) => modelBytes(config, randomTensors(config, quarter));

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

  const opening = (options: EngineOptions) =>
    Model.open(path, { engine: 'native', weights: 'mapped', cache: 'f32', ...options });

  it.each([
    ['is not there', 'nowhere', 'ENOENT'],
    ['is a file', 'model.cflow', 'ENOTDIR'],
  ])('are refused a directory that %s when the model is opened', async (_, name, reason) => {
    const spillDirectory = join(directory, name);
    for (const options of [{ spillDirectory }, { spillDirectory, cacheMemory: 7.5 * PAGES }]) {
      await expect(opening(options)).rejects.toMatchObject({
        code: 'WRITE_FAILED',
        message: `spillDirectory: cannot create a file for the KV cache in ${spillDirectory}: ${reason} (name a writable directory, or allow more memory for the KV cache)`,
        details: { field: 'spillDirectory', value: spillDirectory },
      });
    }
    expect(await readdir(directory)).toEqual(['model.cflow']);
  });

  it('are refused a default directory that takes no files, where they may need one', async () => {
    vi.stubEnv('TMPDIR', join(directory, 'nowhere'));
    onTestFinished(() => void vi.unstubAllEnvs());
    await expect(opening({ cacheMemory: 7.5 * PAGES })).rejects.toMatchObject({ code: 'WRITE_FAILED' });
    await (await opening({})).close();
  });

  it.each([
    // A page of each layer.
    ['one token', {}, PAGES, ''],
    // The same, and in each of two areas the six pages of a layer that are on disk.
    ['440 positions', { context: 440 }, PAGES + (2 * 6 * PAGES) / LAYERS, ', or use a shorter context'],
  ])(
    'are refused a memory without room for %s when the model is opened',
    async (whose, more, limit, shorter) => {
      const cacheMemory = limit - 1;
      await expect(opening({ cacheMemory, ...more })).rejects.toMatchObject({
        code: 'MEMORY',
        message: `cacheMemory: ${memoryText(cacheMemory)} cannot hold the KV cache of ${whose} (allow ${limit} bytes or more${shorter})`,
        details: { field: 'cacheMemory', value: cacheMemory, limit },
      });
      await (await opening({ cacheMemory: limit, ...more })).close();
    },
  );

  it('say that a directory is a tmpfs, which is memory', async () => {
    const TMPFS = 0x01021994;
    for (const spillDirectory of [directory, '/dev/shm']) {
      const kind = await statfs(spillDirectory).catch(() => undefined);
      if (!kind) continue;
      const { native } = (await run({ cacheMemory: 7.5 * PAGES, spillDirectory })).stats;
      const said = native!.tiers.cacheReason.startsWith(`${spillDirectory} is a tmpfs`);
      expect(said, `${spillDirectory}: ${native!.tiers.cacheReason}`).toBe(kind.type === TMPFS);
    }
  });

  it('go to TMPDIR, else to /var/tmp where it can be written', async () => {
    vi.stubEnv('TMPDIR', '/my/own');
    expect(spillDirectory()).toBe('/my/own');
    vi.stubEnv('TMPDIR', '');
    const writable = await access('/var/tmp', constants.W_OK).then(
      () => true,
      () => false,
    );
    expect(spillDirectory()).toBe(writable ? '/var/tmp' : tmpdir());
    vi.unstubAllEnvs();
  });

  it('are explained, though weights are resident', async () => {
    const explained = async (...more: string[]) => {
      const asked = ['--ids', ids.join(), '--max-tokens', '2', '--weights', 'resident', '--explain', ...more];
      const { code, err } = await captured(main, [path, ...asked]);
      expect({ code, err: code ? err : '' }).toEqual({ code: 0, err: '' });
      return err;
    };
    expect(await explained()).toBe('weights     resident (as asked)\n');
    const memory = ['--cache', 'f32', '--cache-memory', `${7.5 * PAGES}`, '--spill-directory', directory];
    const lines = (await explained(...memory)).trimEnd().split('\n');
    expect(lines).toEqual([
      'weights     resident (as asked)',
      expect.stringMatching(/^KV cache {4}[\d.]+ [kM]B written to disk, [\d.]+ [kM]B read back( \(.*\))?$/),
      expect.stringMatching(/^stalled {5}[\d.]+ s over \d+ threads for it$/),
    ]);
  });

  it.each([0, -1, 1.5, '1'])('refuses a memory of %j', async (cacheMemory) => {
    await expect(run({ cacheMemory: cacheMemory as number })).rejects.toMatchObject({ code: 'USAGE' });
  });
});

describe('the memory of keys and values', () => {
  const planOf = (config: ModelConfig) => buildPlan(config, { transfers: 'none' });
  const sizesOf = (config: ModelConfig, context: number, maxBatch: number, valueBytes = 2) =>
    modelSizes(planOf(config), layoutOnly(config, 'f16'), { context, maxBatch, valueBytes });
  /** Keys and values of two heads of 8, of two bytes each. */
  const POSITION = 2 * 2 * 16;

  it('is estimated: with all, and with all on disk that can be', () => {
    // Six windows of 16, one token and what lies beside both in their first and last page; two caches of 640 positions:
    // as many as staging areas, so nothing is gained.
    const sizes = sizesOf(makeConfig({ layers: 8, experts: 0, slidingEvery: 4 }), 640, 1);
    expect(sizes.cacheBytes).toBe((6 * (16 + 1 + 126) + 2 * 640) * POSITION);
    expect(sizes.leastCacheBytes).toBe(sizes.cacheBytes);
    expect(sizes.batchCacheBytes).toBe(6 * POSITION);
    // Two pages of each of eight caches; eight pages in each of two areas. Positions count by pages of 64.
    const even = sizesOf(makeConfig({ layers: 8, experts: 0 }), 590, 1);
    expect(even.cacheBytes).toBe(8 * 640 * POSITION);
    expect(even.leastCacheBytes).toBe((8 * 2 + 2 * 8) * 64 * POSITION);
    expect(even.batchCacheBytes).toBe(0);
  });

  it('is what the engine takes, to a page of each window', async () => {
    const config = makeConfig({ layers: 8, experts: 0, slidingEvery: 4 });
    const file = join(directory, 'windows.cflow');
    await writeFile(file, await damped(config));
    for (const [context, maxBatch] of [
      [640, 1],
      [590, 49],
      [640, 50],
      [640, 51],
      [520, 300],
      [500, 512],
      [90, 512],
    ] as const) {
      const options = { engine: 'native', weights: 'mapped', cache: 'f32', maxBatch } as const;
      await using model = await Model.open(file, options);
      const session = model.createSession();
      await session.prefill(Array.from({ length: context }, (_, i) => i % 50));
      const { cacheBytes, batchCacheBytes } = sizesOf(config, context, maxBatch, 4);
      const estimate = cacheBytes + maxBatch * batchCacheBytes;
      const { cacheBytes: taken } = session.stats();
      const name = `${context} positions, ${maxBatch} at once: ${taken} of ${estimate}`;
      expect(taken, name).toBeLessThanOrEqual(estimate);
      expect(estimate - taken, name).toBeLessThanOrEqual(6 * 64 * 2 * POSITION);
    }
  });

  const SIZES: ModelSizes = {
    fileBytes: 2e9,
    plainBytes: 0,
    streams: ['a', 'b', 'c', 'd'].map((name) => ({ name, bytes: 200e6, vocabulary: false })),
    experts: undefined,
    cacheBytes: 900e6,
    leastCacheBytes: 200e6,
    batchCacheBytes: 0,
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
    expect(plan.rule).toContain('629.42 MiB of 900 MB of the KV cache are in memory');
    expect(configured(1.3e9)).not.toHaveProperty('cacheMemory');
  });

  it('is no less than what works, which is named', () => {
    const mebibytes = Math.ceil((REST + 200e6) / 0.96 / 2 ** 20);
    const limit = mebibytes * 2 ** 20;
    expect(() => configured(limit - 2 ** 20)).toThrow(`the model needs ${mebibytes} MiB at least`);
    expect(configured(limit).cacheMemory).toBeGreaterThanOrEqual(200e6);
    const { leastCacheBytes: _, ...all } = SIZES;
    expect(() => configured(1e9, all)).toThrow('the model needs 1193 MiB at least');
  });
});
