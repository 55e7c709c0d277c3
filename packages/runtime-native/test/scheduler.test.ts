/** Many requests on one model: each gets what a session alone gives, in the order and within the limits that are stated. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Model } from '../src/model.js';
import { planStep } from '../src/serving/plan-step.js';
import { commonPrefix, PrefixCache } from '../src/serving/prefix-cache.js';
import { Scheduler } from '../src/serving/scheduler.js';
import type { GeneratedToken, GenerateOptions } from '../src/session.js';
import { goldenFile, tokenizerMetadata } from './model-file.js';
import { bytesOpener } from './opened.js';
import { MODELS, WAYS } from './sequence-models.js';

const { opened } = bytesOpener();

const arch4 = async (way = 'native q4_0') => {
  const { dtype, ...options } = WAYS[way]!;
  const file = { ...(dtype && { dtype }), tokenizer: tokenizerMetadata() };
  return opened((await goldenFile('arch4', file)).bytes, options);
};

type Request = GenerateOptions & { ids: readonly number[] };
async function collect(tokens: AsyncIterable<GeneratedToken>): Promise<GeneratedToken[]> {
  const all = [];
  for await (const token of tokens) all.push(token);
  return all;
}
async function alone(model: Model, request: Request): Promise<GeneratedToken[]> {
  await using session = model.createSession();
  return await collect(session.generate(request));
}

const prompt = (k: number, length: number) => Array.from({ length }, (_, i) => (k * i + 3) % 90);
const REQUESTS: Request[] = [
  { ids: prompt(1, 1), maxTokens: 9, temperature: 0 },
  { ids: prompt(5, 30), maxTokens: 12, seed: 7, temperature: 1.3 },
  { ids: prompt(7, 17), maxTokens: 5, seed: 1, topK: 5, logprobs: 2 },
  { ids: prompt(9, 40), maxTokens: 10, seed: 2, frequencyPenalty: 0.7, temperature: 2 },
  { ids: prompt(11, 3), maxTokens: 20, temperature: 0.8, seed: 3, stop: ['ab', 'x'], ignoreEos: true },
];

describe('a step', () => {
  const limits = { stepTokens: 8, idleTokens: 32 };
  const decode = { left: 1, decodes: true };
  const text = (left: number) => ({ left, decodes: false });

  it.each([
    [[], []],
    [
      [decode, decode],
      [1, 1],
    ],
    [
      [text(20), decode],
      [8, 1],
    ],
    [
      [decode, text(5), text(20)],
      [1, 5, 3],
    ],
    // Nobody waits.
    [
      [text(20), text(20)],
      [20, 12],
    ],
    // No piece of one token, and none that leaves one.
    [
      [decode, text(7), text(9)],
      [1, 7, 0],
    ],
    [
      [decode, text(9)],
      [1, 7],
    ],
    [
      [decode, text(1), text(7)],
      [1, 1, 7],
    ],
  ])('of %j passes %j', (waiting, expected) => {
    expect(planStep(waiting, limits)).toEqual(expected);
  });

  it('passes everything in the end, in pieces of two tokens or more', () => {
    fc.assert(
      fc.property(
        fc.array(fc.record({ left: fc.integer({ min: 1, max: 60 }), decodes: fc.boolean() }), {
          maxLength: 6,
        }),
        fc.integer({ min: 2, max: 20 }),
        (given, stepTokens) => {
          let entries = given.map(({ left, decodes }) => ({
            left: decodes ? 1 : left,
            decodes,
            whole: left,
          }));
          while (entries.length > 0) {
            const plan = planStep(entries, { stepTokens, idleTokens: 30 });
            const prompts = plan.filter((_, i) => !entries[i]!.decodes);
            const most = entries.some(({ decodes }) => decodes) ? stepTokens : Math.max(stepTokens, 30);
            expect(prompts.reduce((a, b) => a + b, 0)).toBeLessThanOrEqual(most + 1);
            for (const [i, count] of plan.entries()) {
              const { decodes, left, whole } = entries[i]!;
              if (decodes) expect(count).toBe(1);
              else if (whole > 1) expect(count).not.toBe(1);
              expect(count).toBeLessThanOrEqual(left);
            }
            expect(plan.some((count) => count > 0)).toBe(true);
            entries = entries
              .map((entry, i) => ({ ...entry, left: entry.left - plan[i]! }))
              .filter(({ left }) => left > 0);
          }
        },
      ),
    );
  });
});

describe('requests side by side', () => {
  it.each(Object.keys(WAYS))('%s give the tokens that each gives alone', async (way) => {
    const model = await arch4(way);
    const expected = [];
    for (const request of REQUESTS) expected.push(await alone(model, request));
    for (const maxSequences of [1, 3, 8]) {
      await using scheduler = new Scheduler(model, { maxSequences, stepTokens: 4 });
      const given = await Promise.all(REQUESTS.map((request) => collect(scheduler.generate(request))));
      expect(given).toEqual(expected);
      const stats = scheduler.stats();
      expect(stats).toMatchObject({ running: 0, waiting: 0, reusedTokens: 0, keptSessions: 0 });
      expect(stats.promptTokens).toBe(REQUESTS.reduce((sum, { ids }) => sum + ids.length, 0));
      expect(stats.generatedTokens).toBe(expected.flat().length);
      await scheduler.close();
    }
  });

  it('share steps', async () => {
    const model = await arch4();
    await using scheduler = new Scheduler(model);
    let most = 0;
    const watch = async (request: Request) => {
      for await (const _ of scheduler.generate(request)) most = Math.max(most, scheduler.stats().batchSize);
    };
    await Promise.all([1, 2, 3, 4].map((k) => watch({ ids: prompt(k, 4), maxTokens: 12, ignoreEos: true })));
    expect(most).toBe(4);
    expect(scheduler.stats().tokensPerSecond).toBeGreaterThan(0);
  });
});

describe('the queue', () => {
  it('refuses more than it holds, and frees places by an abort or by leaving', async () => {
    const model = await arch4();
    await using scheduler = new Scheduler(model, { maxSequences: 1, maxQueue: 1 });
    const request = { ids: prompt(3, 4), maxTokens: 10, ignoreEos: true, temperature: 0 };
    const first = scheduler.generate(request);
    await first.next();
    const abort = new AbortController();
    const second = scheduler.generate({ ...request, signal: abort.signal }).next();
    expect(scheduler.stats()).toMatchObject({ running: 1, waiting: 1 });
    await expect(scheduler.generate(request).next()).rejects.toMatchObject({
      code: 'LIMIT_EXCEEDED',
      details: { field: 'maxQueue', limit: 1 },
    });
    abort.abort();
    await expect(second).rejects.toMatchObject({ code: 'INTERRUPTED' });
    expect(scheduler.stats()).toMatchObject({ running: 1, waiting: 0 });
    const third = collect(scheduler.generate(request));
    await first.return();
    expect(await third).toEqual(await alone(model, request));
    expect(scheduler.stats()).toMatchObject({ running: 0, waiting: 0 });
  });

  it('drains on close, and aborts if told to', async () => {
    const model = await arch4();
    const request = { ids: prompt(3, 4), maxTokens: 10, ignoreEos: true, temperature: 0 };
    const scheduler = new Scheduler(model, { maxSequences: 1 });
    const both = [collect(scheduler.generate(request)), collect(scheduler.generate(request))];
    const closed = scheduler.close();
    await expect(scheduler.generate(request).next()).rejects.toMatchObject({ code: 'USAGE' });
    await closed;
    const expected = await alone(model, request);
    expect(await Promise.all(both)).toEqual([expected, expected]);
    const aborted = new Scheduler(model, { maxSequences: 1 });
    const running = aborted.generate(request);
    await running.next();
    const waiting = aborted.generate(request).next();
    const gone = aborted.close({ abort: true });
    await expect(waiting).rejects.toMatchObject({ code: 'INTERRUPTED' });
    await expect(running.next()).rejects.toMatchObject({ code: 'INTERRUPTED' });
    await gone;
  });

  it.each([{ maxSequences: 0 }, { stepTokens: 1 }, { cacheMemory: -1 }, { maxQueue: 1.5 }])(
    'refuses %j',
    async (options) => {
      const model = await arch4();
      expect(() => new Scheduler(model, options)).toThrowError(expect.objectContaining({ code: 'USAGE' }));
    },
  );

  it('a request that fails leaves the others alone', async () => {
    const model = await arch4();
    await using scheduler = new Scheduler(model);
    const request = { ids: prompt(3, 4), maxTokens: 10, ignoreEos: true, temperature: 0 };
    const fails = collect(scheduler.generate({ ids: prompt(1, 65) }));
    const runs = collect(scheduler.generate(request));
    await expect(fails).rejects.toMatchObject({ code: 'LIMIT_EXCEEDED' });
    expect(await runs).toEqual(await alone(model, request));
  });
});

describe('prefixes', () => {
  it('are as long as the sequences agree', () => {
    expect(commonPrefix([], [1])).toBe(0);
    expect(commonPrefix([1, 2, 3], [1, 2, 4, 5])).toBe(2);
    expect(commonPrefix([1, 2], [1, 2, 3])).toBe(2);
  });

  it.each(['reference', 'native f32'])('that the %s engine has passed are passed once', async (way) => {
    const model = await opened(await MODELS.llama!({}), WAYS[way]!);
    await using scheduler = new Scheduler(model, { cacheMemory: 1e9 });
    const greedy = { maxTokens: 4, temperature: 0, ignoreEos: true };
    const shared = prompt(7, 50);
    for (const [ids, reused] of [
      [[...shared, 1, 2, 3], 0],
      [[...shared, 4, 5, 6, 7], 50],
      [[...shared, 1, 2, 3], 51],
      [prompt(5, 40), 0],
      [[...shared.slice(0, 20), 9, 9], 20],
      // Too little to be worth it.
      [[...shared.slice(0, 10), 9, 9], 0],
    ] as const) {
      const before = scheduler.stats().reusedTokens;
      const tokens = await collect(scheduler.generate({ ...greedy, ids }));
      expect(scheduler.stats().reusedTokens - before).toBe(reused);
      expect(tokens).toEqual(await alone(model, { ...greedy, ids }));
    }
    expect(scheduler.stats().keptSessions).toBeGreaterThan(1);
    await scheduler.close();
    expect(scheduler.stats()).toMatchObject({ keptSessions: 0, keptBytes: 0 });
  });

  it('are given up within the budget, the least recently used first', async () => {
    const model = await opened(await MODELS.llama!({}), WAYS['native f32']!);
    const page = 3 * 64 * 2 * 2 * 24 * 4;
    const cache = new PrefixCache(2 * page);
    for (const k of [3, 5, 7]) {
      const session = model.createSession();
      await session.prefill(prompt(k, 30));
      await cache.keep(session);
    }
    expect(cache).toMatchObject({ size: 2, bytes: 2 * page });
    expect(await cache.take(prompt(3, 30))).toBe(undefined);
    const found = await cache.take(prompt(7, 30));
    expect(found).toMatchObject({ reused: 28 });
    await found!.session.close();
    await cache.close();
    expect(cache.bytes).toBe(0);
  });

  it('of a session that was aborted are kept as far as it got', async () => {
    const model = await arch4();
    await using scheduler = new Scheduler(model, { cacheMemory: 1e9 });
    const ids = prompt(7, 30);
    const abort = new AbortController();
    const request = { ids, maxTokens: 20, ignoreEos: true, signal: abort.signal };
    const running = scheduler.generate(request);
    await running.next();
    abort.abort();
    await expect(running.next()).rejects.toMatchObject({ code: 'INTERRUPTED' });
    expect(scheduler.stats()).toMatchObject({ running: 0, keptSessions: 1 });
    await collect(scheduler.generate({ ids, maxTokens: 1 }));
    expect(scheduler.stats().reusedTokens).toBe(28);
  });
});
