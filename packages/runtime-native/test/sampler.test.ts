/** The sampler against the plain definition of what it does: sort, cut, draw. */
import fc from 'fast-check';
import { expect, it, onTestFinished, vi } from 'vitest';
import { randomGenerator } from '../src/random.js';
import { Sampler } from '../src/sampler.js';

interface Options {
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly seed: number;
}

function plain(logits: Float32Array, { temperature, topK, topP, seed }: Options): number {
  const sorted = [...logits].map((logit, id) => ({ id, logit }));
  sorted.sort((a, b) => b.logit - a.logit || a.id - b.id);
  const kept = sorted.slice(0, topK || sorted.length);
  const weights = kept.map(({ logit }) => Math.exp((logit - kept[0]!.logit) / temperature));
  const sum = (values: number[]) => values.reduce((total, value) => total + value, 0);
  let count = 1;
  while (count < weights.length && sum(weights.slice(0, count)) < topP * sum(weights)) count++;
  let left = randomGenerator(seed).next() * sum(weights.slice(0, count));
  for (let i = 0; i < count; i++) {
    left -= weights[i]!;
    if (left < 0) return kept[i]!.id;
  }
  return kept[count - 1]!.id;
}

const options = fc.record({
  temperature: fc.constantFrom(0.1, 0.8, 3),
  topK: fc.constantFrom(0, 1, 2, 40, 256, 257, 300, 1000),
  topP: fc.constantFrom(0, 0.3, 0.95, 1),
  seed: fc.integer({ min: 0, max: 2 ** 32 - 1 }),
});
/** Few different values, so that there are ties, zeros of both signs and logits that are never chosen. */
const coarse = fc.constantFrom(-7.5, -1, -0.25, -0, 0, 1e-30, 0.25, 1, 6, Number.NEGATIVE_INFINITY);
const fine = fc.float({ min: -30, max: 30, noNaN: true });

it.each([
  ['coarse', coarse],
  ['fine', fine],
] as const)('%s logits: the id is that of sorting, cutting and drawing', (_name, logit) => {
  const logits = fc.array(logit, { minLength: 1, maxLength: 400, size: 'max' });
  const property = fc.property(logits, options, (values, how) => {
    const row = Float32Array.of(0.5, ...values);
    expect(new Sampler(how).sample(row)).toBe(plain(row, how));
  });
  fc.assert(property, { numRuns: 300, seed: 1 });
});

it('a sampler keeps nothing of the logits before, whatever their number', () => {
  const sampler = new Sampler({ topK: 0, topP: 1, temperature: 0.01, seed: 3 });
  const row = (best: number, length: number) =>
    Float32Array.from({ length }, (_, id) => (id === best ? 9 : -9));
  const best = [
    [5, 400],
    [300, 301],
    [0, 700],
    [1, 2],
    [2 ** 21, 2 ** 21 + 1],
  ] as const;
  for (const [id, length] of best) expect(sampler.sample(row(id, length))).toBe(id);
});

it('a large vocabulary is sorted only where its order counts, and never by comparison: the event loop waits', () => {
  const numbers = vi.spyOn(Float64Array.prototype, 'sort');
  const others = [Float32Array, Uint32Array, Array].map((list) => vi.spyOn(list.prototype, 'sort'));
  onTestFinished(() => {
    for (const spy of [numbers, ...others]) spy.mockRestore();
  });
  const logits = Float32Array.from({ length: 50_000 }, (_, id) => Math.sin(id * id));
  new Sampler({ seed: 1 }).sample(logits);
  expect(numbers).not.toHaveBeenCalled();
  new Sampler({ seed: 1, topK: 0 }).sample(logits);
  expect(numbers.mock.calls).toEqual([[]]);
  for (const spy of others) expect(spy).not.toHaveBeenCalled();
});
