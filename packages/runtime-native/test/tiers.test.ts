/** Where weights go, for budgets and machines that are made up: expected values are worked out by hand. */
import { CflowError } from '@cflow/format';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { configureTiers, spread, type TierPlan, type TierWishes } from '../src/tiers/configure.js';
import { type ExpertSizes, type ModelSizes, sum } from '../src/tiers/estimate.js';
import { predict } from '../src/tiers/predict.js';
import { countProcess } from '../src/tiers/process.js';

const MB = 1e6;
const MIB = 2 ** 20;
const LAYER = 20.48 * MB;
const EXPERT = 4.096 * MB;

/** Four layers and a head: 92.16 MB in streams, and 1 MB of norms. */
const DENSE: ModelSizes = {
  fileBytes: 100 * MB,
  plainBytes: MB,
  streams: [
    ...['a', 'b', 'c', 'd'].map((name) => ({ name, bytes: LAYER, vocabulary: false })),
    { name: 'head', bytes: LAYER / 2, vocabulary: true },
  ],
  experts: undefined,
  cacheBytes: 2 * MB,
  batchCacheBytes: 0,
  tokenBytes: 10_000,
};
const EXPERTS: ExpertSizes = {
  count: 64,
  bytes: EXPERT,
  perToken: 8,
  layerCount: 16,
  topK: 2,
  layersInFlight: 1,
};
const MOE: ModelSizes = { ...DENSE, fileBytes: 400 * MB, experts: EXPERTS };
const DELAYED: ModelSizes = { ...MOE, experts: { ...EXPERTS, layersInFlight: 3 } };
const WISHES = { used: 80 * MB, maxBatch: 512, liveStreams: 2 };

const configure = (sizes: ModelSizes, megabytes: number, wishes: Partial<TierWishes> = {}) =>
  configureTiers(sizes, { ...WISHES, budget: megabytes * MB, ...wishes });

/** What a plan says, without bytes. */
const brief = ({ placement, expertSlots, streamSlots, maxBatch, transfers, mode }: TierPlan) => [
  [...placement.streams].join(''),
  expertSlots,
  streamSlots,
  maxBatch,
  transfers,
  mode,
];

function refusal(work: () => unknown): CflowError {
  try {
    work();
  } catch (error) {
    expect(error).toBeInstanceOf(CflowError);
    return error as CflowError;
  }
  throw new Error('nothing was refused');
}

describe('configureTiers', () => {
  // Everything: 80 of the process, 100, 2 and 5.12 for 512 tokens are 187.12 MB, of 96 % of the budget.
  it('keeps everything in memory where it fits', () => {
    expect(configure(DENSE, 195)).toMatchObject({ weights: 'resident', transfers: 'none', maxBatch: 512 });
    expect(configure(DENSE, 194).weights).toBe('direct');
    expect(configure(DENSE, 195).memory).toEqual({
      process: 80 * MB,
      weights: 100 * MB,
      slots: 0,
      caches: 2 * MB,
      vectors: 5.12 * MB,
    });
  });

  /**
   * Of 96 % of the budget, 82.01 MB go to process, caches and a token; slots for two streams are 40.96. With all but
   * one in memory 93.16 are left to find; with three fetched and two slots 72.68; with four 52.20; with all 41.96.
   */
  it.each([
    [194, 'd', 1, 512, 'memory-efficient'],
    [170, 'bcd', 2, 512, 'memory-efficient'],
    [140, 'abcd', 2, 20, 'memory-efficient'],
    [130, 'abcdhead', 2, 84, 'memory-efficient'],
  ])('%d MB for a dense model fetch %s', (budget, streams, slots, maxBatch, mode) => {
    expect(brief(configure(DENSE, budget))).toEqual([streams, 0, slots, maxBatch, 'overlap', mode]);
  });

  it('reads ahead where slots for more than two streams fit', () => {
    // All six and four slots: 1 + 4 · 20.48 MB of 100.39. Five would keep one more; three and two slots as much.
    const streams = ['a', 'b', 'c', 'd', 'e', 'f'].map((name) => ({ name, bytes: LAYER, vocabulary: false }));
    const plan = configure({ ...DENSE, fileBytes: 150 * MB, streams }, 190);
    expect(brief(plan)).toEqual(['abcdef', 0, 4, 512, 'overlap', 'performance']);
  });

  /** 93.16 MB for streams; 2 % of the budget are for a batch. An expert of the 64 takes 4.096. */
  it.each([
    [300, '', 26, 0, 512],
    [240, '', 12, 0, 6],
    [192, '', 2, 0, 1],
    [191, 'abcdhead', 3, 4, 1],
    [180, 'bcd', 3, 2, 1],
    [138, 'abcdhead', 2, 2, 1],
  ])(
    '%d MB for a model with experts fetch [%s], and hold %d experts',
    (budget, names, slots, ring, maxBatch) => {
      const [streams, ...rest] = brief(configure(MOE, budget));
      expect([streams, ...rest.slice(0, 4)]).toEqual([names, slots, ring, maxBatch, 'predict']);
    },
  );

  it('a delay needs no prediction, and slots for all layers under way', () => {
    // Room for 26 experts as above: 8 for each of three layers, of which a token uses two.
    expect(brief(configure(DELAYED, 300)).slice(1, 5)).toEqual([26, 0, 4, 'overlap']);
    expect(configure(DELAYED, 300, { transfers: 'stall' }).transfers).toBe('stall');
  });

  // 82.01 + 41.96 MB of 96 %, and two or six experts: 129.2, 137.7 and 154.8 MB.
  it.each([
    ['dense', DENSE, 124],
    ['with experts', MOE, 132],
    ['delayed', DELAYED, 148],
  ])('%s: the smallest budget that works is named, in whole MiB', (_name, sizes, least) => {
    const limit = least * MIB;
    expect(configure(sizes, limit / MB).weights).toBe('direct');
    const error = refusal(() => configure(sizes, (limit - MIB) / MB));
    expect(error).toMatchObject({ code: 'MEMORY', details: { field: 'memory', limit } });
    expect(error.message).toContain(`the model needs ${least} MiB at least`);
    expect(error.details.remedy).toContain(`allow ${least} MiB or more`);
    expect(refusal(() => configure(sizes, 1)).details.limit).toBe(limit);
    // Another process may use 9.6 MiB more: 10 of a budget.
    expect(refusal(() => configure(sizes, 1, { margin: 9.6 * MIB })).details.limit).toBe(limit + 10 * MIB);
  });

  it('a large head stays in memory when slots of its size would be more', () => {
    const streams = [...DENSE.streams.slice(0, 4), { name: 'head', bytes: 10 * LAYER, vocabulary: true }];
    const sizes = { ...DENSE, fileBytes: 300 * MB, streams };
    // 1 + 204.8 + 40.96 MB instead of 1 + 2 · 204.8.
    const { limit } = refusal(() => configure(sizes, 1)).details;
    // 328.77 MB of 96 % are 326.6 MiB.
    expect(limit).toBe(327 * MIB);
    expect(brief(configure(sizes, 343)).slice(0, 3)).toEqual(['abcd', 0, 2]);
  });

  it('takes slots that are asked for, even where everything fits', () => {
    expect(brief(configure(MOE, 4000, { expertSlots: 5 }))).toEqual(['', 5, 0, 2, 'predict', 'performance']);
    expect(configure(MOE, 4000, { expertSlots: 500 }).expertSlots).toBe(64);
    expect(brief(configure(DENSE, 4000, { streamSlots: 3 })).slice(0, 3)).toEqual(['d', 0, 1]);
    expect(configure(MOE, 4000, { expertSlots: 5, streamSlots: 3 }).placement.streams.size).toBe(1);
  });

  it.each([
    ['experts of a model without', DENSE, { expertSlots: 8 }, 'expertSlots', 'USAGE', 0],
    ['fewer experts than a token uses', MOE, { expertSlots: 1 }, 'expertSlots', 'USAGE', 2],
    ['fewer than its layers under way use', DELAYED, { expertSlots: 5 }, 'expertSlots', 'USAGE', 6],
    ['fewer streams than are in use', DENSE, { streamSlots: 1 }, 'streamSlots', 'USAGE', 2],
    // 82.01 + 41.96 + 40 · 4.096 MB.
    ['more experts than fit', MOE, { expertSlots: 40 }, 'memory', 'MEMORY', 286 * MIB],
  ])('refuses %s', (_name, sizes, wishes, field, code, limit) => {
    expect(refusal(() => configure(sizes, 299, wishes))).toMatchObject({ code, details: { field, limit } });
  });

  it('never plans for more memory than there is, and names budgets that work', () => {
    const bytes = fc.integer({ min: 4096, max: 3e8 });
    const streams = fc.array(fc.tuple(bytes, fc.boolean()), { minLength: 1, maxLength: 12 });
    const experts = fc.record({
      count: fc.integer({ min: 1, max: 8 }).map((layers) => 16 * layers),
      bytes,
      perToken: fc.constant(8),
      layerCount: fc.constant(16),
      topK: fc.integer({ min: 1, max: 16 }),
      layersInFlight: fc.integer({ min: 1, max: 4 }),
    });
    const model = fc.record({
      streams: streams.map((list) =>
        list.map(([size, vocabulary], i) => ({ name: `${i}`, bytes: size, vocabulary })),
      ),
      experts: fc.option(experts, { nil: undefined }),
      plainBytes: bytes,
      cacheBytes: bytes,
      batchCacheBytes: fc.integer({ min: 0, max: 1e5 }),
      tokenBytes: fc.integer({ min: 100, max: 1e6 }),
    });
    const wishes = fc.record({
      budget: fc.integer({ min: 1, max: 4e9 }),
      used: bytes,
      maxBatch: fc.integer({ min: 1, max: 512 }),
      liveStreams: fc.integer({ min: 1, max: 5 }),
    });
    const fits = (sizes: ModelSizes, wish: TierWishes) => {
      const plan = configureTiers(sizes, wish);
      expect(configureTiers(sizes, wish)).toEqual(plan);
      expect(sum(Object.values(plan.memory))).toBeLessThanOrEqual(wish.budget);
      expect(plan.maxBatch).toBeGreaterThanOrEqual(1);
      if (plan.weights === 'resident') return;
      const fetched = plan.placement.streams.size;
      expect(plan.streamSlots).toBeGreaterThanOrEqual(Math.min(wish.liveStreams, fetched));
      expect(plan.placement.experts).toBe(sizes.experts !== undefined);
      if (!sizes.experts) return;
      const { count, topK, layerCount, layersInFlight } = sizes.experts;
      const used = layersInFlight * Math.min(layerCount, plan.maxBatch * topK);
      expect(plan.expertSlots).toBeGreaterThanOrEqual(Math.min(count, used));
    };
    fc.assert(
      fc.property(model, wishes, (made, wish) => {
        const { streams: all, experts: some, plainBytes } = made;
        const weights = plainBytes + sum(all.map((stream) => stream.bytes));
        const fileBytes = weights + (some ? some.count * some.bytes : 0);
        const sizes: ModelSizes = { ...made, fileBytes };
        try {
          fits(sizes, wish);
        } catch (error) {
          if (!(error instanceof CflowError)) throw error;
          expect(error.code).toBe('MEMORY');
          const limit = error.details.limit as number;
          expect(limit).toBeGreaterThan(wish.budget);
          fits(sizes, { ...wish, budget: limit });
          // Two: sizes that are whole megabytes are named one above.
          expect(() => fits(sizes, { ...wish, budget: limit - 2 * MB })).toThrow(CflowError);
        }
      }),
      { numRuns: 300, seed: 1 },
    );
  });

  it('counts what a batch takes in caches with a window', () => {
    // 81.99 MB of process and caches and 41.96 of weights leave 0.85 of 124.8: 42 tokens of 20,000 bytes.
    const sizes = { ...DENSE, cacheBytes: 2 * MB - 10_000, batchCacheBytes: 10_000 };
    const plan = configure(sizes, 130);
    expect(plan.maxBatch).toBe(42);
    expect(plan.memory).toMatchObject({ caches: 2 * MB - 10_000 + 42 * 10_000, vectors: 42 * 10_000 });
    expect(configure(sizes, 1000).memory.caches).toBe(2 * MB - 10_000 + 512 * 10_000);
  });

  it('spreads what is fetched over the layers, those of the vocabulary last', () => {
    const names = (count: number) => spread(DENSE.streams, count).map(({ name }) => name);
    expect([1, 2, 4, 5].map(names)).toEqual([
      ['d'],
      ['b', 'd'],
      ['a', 'b', 'c', 'd'],
      ['a', 'b', 'c', 'd', 'head'],
    ]);
  });
});

it('a model of very many streams is looked at some hundreds of times', () => {
  const streams = Array.from({ length: 30_000 }, (_, i) => ({
    name: `${i}`,
    bytes: 8192,
    vocabulary: false,
  }));
  const sizes = { ...DENSE, fileBytes: 400 * MB, streams };
  // 205.99 MB are left for 1 and 245.76 of streams and four slots: 4,981 do not stay, which is the 85th of 512 counts.
  expect(configure(sizes, 300).placement.streams.size).toBe(4981);
  expect(configure(sizes, 299.9).placement.streams.size).toBe(5040);
  expect(refusal(() => configure(sizes, 10)).code).toBe('MEMORY');
});

it('what does not fit cannot do without transfers', () => {
  expect(configure(DENSE, 195, { transfers: 'none' }).weights).toBe('resident');
  expect(refusal(() => configure(DENSE, 194, { transfers: 'none' }))).toMatchObject({
    code: 'USAGE',
    details: { field: 'transfers', value: 'none' },
  });
});

describe('memory of the process', () => {
  const MIB = 2 ** 20;
  const count = (rss: number, metadataBytes = 0, before = 0) =>
    countProcess({ rss, metadataBytes, before }).bytes;

  // What cflow-run was seen to hold when it divides the budget, MB, and its peak: with the bundled model, with the
  // tokenizer of Qwen 3 and with that of Llama 3.
  it.each([
    ['bundled', 0.15, 75.6, 77.5, 87.6],
    ['Qwen 3', 13.1, 88, 150, 278.5],
    ['Llama 3', 10.33, 92.1, 143.6, 294.3],
  ])(
    '%s: counts the same however much garbage there is, and not less than its peak',
    (_, json, low, high, peak) => {
      const counted = countProcess({ rss: low * MB, metadataBytes: json * MB, before: 0 });
      expect(counted.margin).toBe(0);
      for (let rss = low; rss <= high; rss += 0.1) expect(count(rss * MB, json * MB)).toBe(counted.bytes);
      expect(counted.bytes).toBeGreaterThan(peak * MB);
      expect(counted.bytes).toBeLessThan(1.5 * peak * MB);
    },
  );

  it('counts a larger process in steps, and the tokenizer that it will build', () => {
    expect(countProcess({ rss: 100 * MIB, metadataBytes: 0, before: 0 })).toEqual({
      bytes: 112 * MIB,
      margin: 16 * MIB,
    });
    for (const rss of [100, 103, 112, 97, 81]) expect(count(rss * MIB, 0, 112 * MIB)).toBe(112 * MIB);
    expect(count(113 * MIB, 0, 112 * MIB)).toBe(128 * MIB);
    expect(count(500 * MIB, 10 * MIB)).toBe(640 * MIB);
  });

  it('no longer counts a model that was closed', () => {
    expect(count(100 * MIB, 0, 2048 * MIB)).toBe(112 * MIB);
  });
});

describe('predict', () => {
  /** 65 MB of streams and ten of a hundred experts of 2 MB: 85 MB at 8.5 GB/s, 85 % of what memory gives, take 10 ms. */
  const sizes: ModelSizes = {
    ...DENSE,
    streams: [40, 25].map((mb) => ({ name: `${mb}`, bytes: mb * MB, vocabulary: false })),
    experts: { ...EXPERTS, count: 100, bytes: 2 * MB, perToken: 10 },
  };
  const RATES = { memory: 10e9, disk: 1e9 };
  const plan = (transfers: TierPlan['transfers'], expertSlots = 50, streams: string[] = []) =>
    ({
      transfers,
      expertSlots,
      placement: { experts: true, streams: new Set(streams) },
    }) as unknown as TierPlan;
  const of = (made: TierPlan, delay = 0) =>
    predict({ ...sizes, experts: { ...sizes.experts!, layersInFlight: delay + 1 } }, made, RATES);

  it('half of the experts in memory leave 10 ms of reading, which slows computing by a tenth', () => {
    const { compute, io, interference } = of(plan('stall'));
    expect([compute, io, interference].map((x) => x.toFixed(6))).toEqual([
      '0.010000',
      '0.010000',
      '0.100000',
    ]);
  });

  it.each([
    ['stall: the sum', plan('stall'), 0, 20],
    ['overlap behind a delay: the longer one', plan('overlap'), 1, 11],
    [
      'overlap within a layer: all but the experts, which take 20/8.5 ms, wait',
      plan('overlap'),
      0,
      10 - 20 / 8.5 + 10,
    ],
    ['predict: four of ten as behind a delay', plan('predict'), 0, 0.4 * 11 + 0.6 * (20 - 20 / 8.5)],
    ['streams are read every token', plan('overlap', 100, ['25']), 1, 25],
    ['everything in memory', plan('overlap', 100), 1, 10],
  ])('%s', (_name, made, delay, milliseconds) => {
    const { tokensPerSecond, gain, compute, io } = of(made, delay);
    expect(1000 / tokensPerSecond).toBeCloseTo(milliseconds, 9);
    expect(gain).toBeCloseTo((1000 * (compute + io)) / milliseconds, 9);
  });
});
