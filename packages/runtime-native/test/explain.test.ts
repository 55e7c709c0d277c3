/** The lines of `cflow-run --explain`, for figures that are made up. */
import { expect, it } from 'vitest';
import type { NativeStats } from '../src/engine.js';
import type { TierChoice } from '../src/tiers/choose.js';
import { explainChoice, explainRun } from '../src/tiers/explain.js';

it('says what is kept free', () => {
  const plan = {
    memory: { process: 80e6 + 1, weights: 100e6 + 1, slots: 0, caches: 2e6 + 1, vectors: 5e6 + 1 },
  };
  const choice = { weights: 'resident', reason: 'a rule', budget: 250e6, budgetReason: 'as asked', plan };
  expect(explainChoice(choice as TierChoice)).toEqual([
    'memory      250 MB (as asked)',
    'for         process 76.29 MiB, weights 95.37 MiB, caches 1.91 MiB, vectors 4.77 MiB',
    'kept free   10 MB (4 %), for huge pages, allocators and embedding rows',
    'rule        a rule',
  ]);
});

/** The last line of a run of which 100 tokens/s were predicted. */
function reached(tokensPerSecond: number, generatedTokens: number, tiers: object): string {
  const all = { hits: 0, predicted: 0, misses: 0, ahead: 0, slots: 0, cacheWritten: 0, reason: '', ...tiers };
  const timed = { bytesRead: 1, busySeconds: 1, stallSeconds: 0, ...all };
  const choice = { weights: 'direct', prediction: { tokensPerSecond: 100 } };
  const native = { choice, tiers: timed, threads: 2 } as unknown as NativeStats;
  return explainRun(native, { tokensPerSecond, generatedTokens }).at(-1)!;
}

it.each([
  // 60 of 200 experts were read into an empty memory.
  [
    50,
    100,
    { slots: 60, misses: 150, ahead: 50 },
    '; warm-up: 30 % of the experts read filled the empty expert cache; a longer run is faster',
  ],
  [
    50,
    100,
    { slots: 60, misses: 20, ahead: 20 },
    '; warm-up: 100 % of the experts read filled the empty expert cache; a longer run is faster',
  ],
  [50, 100, { slots: 60, misses: 200, ahead: 50 }, ''],
  [50, 15, {}, '; warm-up: 15 tokens only; a longer run is faster'],
  [50, 16, {}, ''],
  [120, 3, { slots: 60, misses: 60 }, ''],
])('%d tokens/s after %d tokens, with %j: %j', (tokensPerSecond, tokens, tiers, why) => {
  const line = `reached     ${tokensPerSecond}.0 tokens/s, ${(tokensPerSecond / 100).toFixed(2)} of the prediction`;
  expect(reached(tokensPerSecond, tokens, tiers)).toBe(line + why);
});
