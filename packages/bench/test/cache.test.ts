/** The cache of experts on recorded routings: policies, the optimum, the trace file, and a model recorded whole. */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { convert } from '@cflow/convert';
import { randomGenerator } from '@cflow/runtime-native/internal/sampling/random.js';
import {
  readTrace,
  traceHeader,
  traceTokens,
  writeTrace,
} from '@cflow/runtime-native/internal/tiers/trace-file.js';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cache, cacheMeasured } from '../src/experiments/cache/cache.js';
import { predictions, record } from '../src/experiments/cache/record.js';
import {
  ENGINE,
  keysOf,
  LFU,
  LRU,
  OPTIMUM,
  optimumHits,
  replayTrace,
} from '../src/experiments/cache/replay.js';
import { type CacheReplay, requireBenchAddon } from '../src/runner/addon.js';
import { resultSchema } from '../src/runner/result.js';
import { score } from '../src/scorecard/score.js';
import { modelOf } from '../src/synth/geometry.js';
import { synthesizeModel } from '../src/synth/model.js';
import { mostHits, naiveHits } from './naive-cache.js';

/** Routings of the bundled model on its stories: 1,300 tokens, 6 layers, 2 of 8 experts. */
const TRACE = join(import.meta.dirname, 'data/stories-arch2_4.trace.ndjson');
const STORIES = join(import.meta.dirname, '../../../models/stories-arch2_4');
const addon = requireBenchAddon();
let directory: string;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-cache-test-'));
});
afterAll(() => rm(directory, { recursive: true }));

/** One layer, one expert a token. */
const replay = (
  keys: readonly number[],
  slots: number,
  halfLife: number,
  change: Partial<CacheReplay> = {},
) =>
  addon.simulateCache({
    keys: Int32Array.from(keys),
    calls: Int32Array.of(1),
    firstKeys: Int32Array.of(0, 5),
    slots,
    inFlight: 1,
    halfLife,
    repeat: false,
    ...change,
  });

describe('replaying', () => {
  it('LRU forgets what was used the longest ago', async () => {
    // 0 1 2 fill two slots and put out 0; 1 is found; 0 puts out 2; 1 is found.
    expect(await replay([0, 1, 2, 1, 0, 1], 2, 0)).toEqual({ hits: 2, misses: 4 });
  });

  it('LFU keeps what was used most', async () => {
    // 0 three times (2 hits), then 1, 2, 1, 2 put out one another, and 0 is found again.
    expect(await replay([0, 0, 0, 1, 2, 1, 2, 0], 2, Number.POSITIVE_INFINITY)).toEqual({
      hits: 3,
      misses: 5,
    });
    // LRU has lost it.
    expect(await replay([0, 0, 0, 1, 2, 1, 2, 0], 2, 0)).toEqual({ hits: 4, misses: 4 });
  });

  it('LRFU lies between: a half-life decides whether often counts for more than lately', async () => {
    // After 0 0 1, 0 is worth 2^(-1/h) + 2^(-2/h): more than 1 if h is over 1.44. Then 2 comes, and 0 or 1 is lost.
    const keys = [0, 0, 1, 2, 0];
    expect((await replay(keys, 2, 1)).hits).toBe(1);
    expect((await replay(keys, 2, 4)).hits).toBe(2);
  });

  it('ages experts when their layer chooses: the next layer’s are not older than those just used', async () => {
    // Two layers of 0 1 and 2 3. Token 1: 0, 2. Token 2: 1 must put out 0, which its layer has passed over, not 2.
    const layers = { calls: Int32Array.of(1, 1), firstKeys: Int32Array.of(0, 2, 4) };
    expect(await replay([0, 2, 1, 2], 2, 1, layers)).toEqual({ hits: 1, misses: 3 });
  });

  it('keeps what the latest token chose, where it is to', async () => {
    // Layers of 0 1 and 2 3, 3 slots. At the last token 1 puts out 3, which was chosen once, or, as the latest token
    // chose 3, 2, which was chosen twice.
    const keys = [0, 2, 0, 2, 0, 3, 1, 3];
    const layers = { calls: Int32Array.of(1, 1), firstKeys: Int32Array.of(0, 2, 4) };
    expect((await replay(keys, 3, 32, layers)).hits).toBe(3);
    expect((await replay(keys, 3, 32, { ...layers, repeat: true })).hits).toBe(4);
  });

  it('does not put out what calls in flight hold', async () => {
    // Three layers of one expert each; the first would be put out by the third, were it not held by two calls.
    const layers = { calls: Int32Array.of(1, 1, 1), firstKeys: Int32Array.of(0, 1, 2, 3), inFlight: 2 };
    expect(await replay([0, 1, 2, 0, 1, 2], 2, 0, layers)).toEqual({ hits: 0, misses: 6 });
    expect(await replay([0, 1, 2, 0, 1, 2], 3, 0, layers)).toEqual({ hits: 3, misses: 3 });
  });

  it.each([
    ['keys', { keys: Int32Array.of(5) }],
    ['whole number of tokens', { calls: Int32Array.of(2) }],
    ['slots', { slots: 0 }],
    ['in flight', { inFlight: 3 }],
    ['halfLife', { halfLife: -1 }],
    ['halfLife', { halfLife: Number.NaN }],
    ['firstKeys', { firstKeys: Int32Array.of(0, 2, 4) }],
    ['no Int32Array', { keys: [0] as unknown as Int32Array }],
  ])('refuses another %s', async (what, change) => {
    const refused = (async () => replay([0, 1, 2], 2, 0, change))();
    await expect(refused).rejects.toMatchObject({ code: 'USAGE', message: expect.stringContaining(what) });
  });
});

describe('replaying, against the naive cache', () => {
  const random = randomGenerator(7);
  const draw = (length: number, below: number) =>
    Int32Array.from({ length }, () => Math.floor(below * random.next() ** 2));

  it.each([
    ['LRU', 0, 'LRU'],
    ['LFU', Number.POSITIVE_INFINITY, 'LFU'],
    ['LRFU 3', 3, { halfLife: 3 }],
    ['LRFU 20', 20, { halfLife: 20 }],
  ] as const)('%s hits as often, whatever comes', async (_, halfLife, policy) => {
    for (const slots of [1, 2, 3, 4]) {
      const given = {
        keys: draw(300, 6),
        calls: Int32Array.of(1),
        firstKeys: Int32Array.of(0, 6),
        inFlight: 1,
      };
      const { hits } = await addon.simulateCache({ ...given, slots, halfLife, repeat: false });
      expect([slots, hits]).toEqual([slots, naiveHits({ ...given, slots }, policy)]);
    }
  });

  it.each([
    ['LRU', 0, 'LRU'],
    ['LFU', Number.POSITIVE_INFINITY, 'LFU'],
    ['LRFU 16', 16, { halfLife: 16 }],
  ] as const)(
    '%s on routings of the bundled model, three calls of two in flight',
    async (_, halfLife, policy) => {
      const { header, tokens } = await readTrace(TRACE);
      const keys = keysOf({ header, tokens: tokens.slice(0, 400) });
      expect(keys).toMatchObject({ inFlight: 3, calls: Int32Array.of(2, 2, 2, 2, 2, 2) });
      for (const slots of [7, 17, 30]) {
        const { hits, misses } = await addon.simulateCache({ ...keys, slots, halfLife, repeat: false });
        expect([slots, hits]).toEqual([slots, naiveHits({ ...keys, slots }, policy)]);
        expect(hits + misses).toBe(400 * 12);
      }
    },
  );
});

describe('the optimum', () => {
  it('puts out what is used again last', () => {
    // The example of Belady's MIN with 3 frames: 7 0 1 2 0 3 0 4 2 3 0 3 2 1 2 0 1 7 0 1 has 9 faults of 20.
    const keys = Int32Array.of(7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1);
    expect(optimumHits(keys, Int32Array.of(1), 3)).toBe(11);
  });

  it('is what the best of all choices gives, and no policy gives more', async () => {
    const random = randomGenerator(3);
    for (let round = 0; round < 40; round++) {
      const keys = Array.from({ length: 12 }, () => Math.floor(5 * random.next()));
      const slots = 2 + (round % 2);
      const most = optimumHits(Int32Array.from(keys), Int32Array.of(1), slots);
      expect([keys, most]).toEqual([keys, mostHits(keys, slots)]);
      for (const halfLife of [0, 4, Number.POSITIVE_INFINITY])
        expect((await replay(keys, slots, halfLife)).hits).toBeLessThanOrEqual(most);
    }
  });

  it('looks all keys of a call up before it lets one in', () => {
    expect(optimumHits(Int32Array.of(0, 1, 2, 0), Int32Array.of(2), 2)).toBe(1);
  });
});

it('rates of a trace, by hand', async () => {
  // 0 1 2 0 1 2 with 2 of 4 experts in memory. LRU: what comes next was just put out. LFU: 2 puts out 0, 0 puts out 2,
  // 1 is found, and 2 puts out 0. The optimum: 2 puts out 1, 0 is found, 1 puts out 0, 2 is found.
  const header = {
    format: 'cflow-trace/1',
    model: 'm',
    expertDelay: 0,
    layers: [{ layer: 0, experts: 4, topK: 1 }],
  } as const;
  const tokens = [0, 1, 2, 0, 1, 2].map((expert, position) => ({ position, experts: [[expert]] }));
  const report = await replayTrace({ header, tokens }, [0.5, 1], [LRU, LFU, OPTIMUM]);
  expect(report.sizes.map(({ slots }) => slots)).toEqual([2, 4]);
  expect(report.rows.map(({ rates }) => rates)).toEqual([
    [0, 3 / 6],
    [1 / 6, 3 / 6],
    [2 / 6, 3 / 6],
  ]);
  // 6 misses of LRU by 5 and by 4 are what a token waits for.
  const figures = new Map(cacheMeasured(report).metrics.map(({ name, median }) => [name, median]));
  expect(figures.get('LFU, 50 % of the experts: misses of LRU by its own')).toBeCloseTo(6 / 5, 12);
  expect(figures.get('LFU, 50 % of the experts: hit rate')).toBeCloseTo(100 / 6, 12);
});

it('keys count on over the layers, tokens one after another', () => {
  const layers = [
    { layer: 1, experts: 4, topK: 2 },
    { layer: 3, experts: 8, topK: 1 },
  ];
  const header = { format: 'cflow-trace/1', model: 'm', expertDelay: 1, layers } as const;
  const tokens = [
    { position: 0, experts: [[3, 0], [7]] },
    { position: 1, experts: [[1, 2], [0]] },
  ];
  expect(keysOf({ header, tokens })).toEqual({
    keys: Int32Array.of(3, 0, 11, 1, 2, 4),
    calls: Int32Array.of(2, 1),
    firstKeys: Int32Array.of(0, 4, 12),
    inFlight: 2,
  });
});

describe('on the bundled model', () => {
  it('LRFU finds more than LRU, and the optimum more than any', async () => {
    const shares = [0.27, 0.3, 0.35, 0.4, 0.5];
    const policies = [LRU, LFU, ENGINE, OPTIMUM];
    const { rows, tokens } = await replayTrace(await readTrace(TRACE), shares, policies);
    expect(tokens).toBe(1300);
    const [lru, lfu, own, most] = rows.map(({ rates }) => rates);
    for (const i of shares.keys()) {
      expect(own![i]).toBeGreaterThan(lru![i]!);
      expect(own![i]).toBeGreaterThan(lfu![i]!);
      expect(most![i]).toBeGreaterThan(own![i]!);
    }
  });

  it('is judged size by size', async () => {
    const report = await replayTrace(await readTrace(TRACE), [0.27, 0.5], [LRU, LFU, ENGINE, OPTIMUM]);
    const verdict = (measured = cacheMeasured(report)) =>
      score({ cache: { measured } }).find(({ row }) => row.needs[0] === 'cache')!.status;
    expect(verdict()).toBe('proven');
    const worse = report.rows.map((row) => (row.policy === ENGINE ? { ...row, rates: [0, 1] } : row));
    expect(verdict(cacheMeasured({ ...report, rows: worse }))).toBe('inconclusive');
  });

  it('is recorded as the trace says', async () => {
    await expect(readTrace(import.meta.filename)).rejects.toMatchObject({ code: 'FORMAT_INVALID' });
    const { header, tokens } = await readTrace(TRACE);
    expect(header).toMatchObject({ model: 'stories-arch2_4', expertDelay: 2 });
    expect(keysOf({ header, tokens: tokens.slice(0, 1) }).keys).toHaveLength(12);
    const model = join(directory, 'stories.cflow');
    await convert({ source: STORIES, output: model });
    const { metrics, tables } = await cache.quick!({ model, directory: tmpdir(), threads: 1, quick: true });
    resultSchema.shape.metrics.parse(metrics);
    resultSchema.shape.tables.parse(tables);
    expect(metrics.filter(({ name }) => /hit rate/i.test(name))).toHaveLength(2);
  });
});

describe('recording', () => {
  it('notes each token of each layer, and reads what it wrote', async () => {
    const path = join(directory, 'model.cflow');
    const geometry = { ...modelOf('arch2_4_sync', { layers: 2 }, 1), vocabSize: 300 };
    await synthesizeModel({ target: path, format: 'cflow', dtype: 'q4_0', seed: 1, geometry });
    const { config, routings } = await record(path, undefined, 5);
    const header = traceHeader(config);
    const output = join(directory, 'trace.ndjson');
    await writeTrace(output, header, routings);
    const trace = await readTrace(output);
    expect(trace).toEqual({ header, tokens: traceTokens(header, routings) });
    expect(trace.tokens.map(({ position }) => position)).toEqual([0, 1, 2, 3, 4]);
    expect(trace.tokens[4]!.experts[1]).toEqual([...routings.filter(({ bank }) => bank === 1)[4]!.experts]);
    // Predictions are for layers that are not delayed.
    const { foreseen, right } = await predictions(path, config, undefined, 20);
    expect(foreseen).toBeGreaterThanOrEqual(0);
    expect(right).toBeLessThanOrEqual(1);
    const report = await replayTrace(trace, [0.5], [LRU]);
    const { metrics } = cacheMeasured(report, { foreseen: 0.7, right: 0.6 });
    expect(metrics.map(({ name, median }) => [name, median])).toContainEqual([
      'prediction: reads that were foreseen',
      70,
    ]);
  });

  it('refuses a model without experts', async () => {
    const path = join(directory, 'dense.cflow');
    await synthesizeModel({ target: path, format: 'cflow', dtype: 'q4_0', seed: 1, geometry: 'llama-tiny' });
    await expect(record(path, undefined, 3)).rejects.toMatchObject({ code: 'UNSUPPORTED' });
  });
});

describe('a trace that is none', () => {
  const lines = async () => (await readFile(TRACE, 'utf8')).split('\n').slice(0, 3);
  it.each([
    ['line 1', (all: string[]) => ['{"format":"other"}', ...all.slice(1)]],
    ['line 2', (all: string[]) => [all[0], all[1]!.replace('[0,', '[-1,')]],
    ['line 3', (all: string[]) => [all[0], all[1], '[1,[0,1]]']],
    ['line 3', (all: string[]) => [all[0], all[1], '[1']],
    ['line 2', (all: string[]) => [all[0], all[1]!.replace(/,\[\d/, ',[8')]],
  ])('is refused with its %s', async (line, change) => {
    const path = join(directory, 'bad.ndjson');
    await writeFile(path, change(await lines()).join('\n'));
    await expect(readTrace(path)).rejects.toMatchObject({
      code: 'FORMAT_INVALID',
      message: expect.stringContaining(line),
    });
  });

  it('is not there', async () => {
    await expect(readTrace(join(directory, 'nowhere'))).rejects.toMatchObject({ code: 'NOT_READABLE' });
  });
});
