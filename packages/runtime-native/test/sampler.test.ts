/** The sampler against the plain definition of what it does: sort, cut, draw. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { nativeSelect } from '../src/native/sampling.js';
import { randomGenerator } from '../src/sampling/random.js';
import { Sampler, type SamplerOptions } from '../src/sampling/sampler.js';
import { expNegative, select } from '../src/sampling/selection.js';

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

it.each([
  ['coarse', coarse],
  ['fine', fine],
] as const)('%s logits: the addon chooses what TypeScript chooses, whatever is kept', (_name, logit) => {
  const logits = fc.array(logit, { minLength: 1, maxLength: 2000, size: 'max' });
  const kept = fc.record({
    inverseTemperature: fc.constantFrom(0.01, 1, 1.25, 20, 1e6),
    topK: fc.constantFrom(0, 1, 40, 300),
    topP: fc.constantFrom(0, 0.5, 0.95, 1),
    depth: fc.constantFrom(0, 1, 3.5, Number.POSITIVE_INFINITY),
    random: fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
  });
  const property = fc.property(logits, kept, (values, selection) => {
    const row = Float32Array.of(0.5, ...values);
    expect(nativeSelect()!(row, selection)).toBe(select(row, selection));
  });
  fc.assert(property, { numRuns: 500, seed: 2 });
});

it('draws from 151,936 ids as TypeScript does, and says where there is nothing to choose', () => {
  const logits = Float32Array.from({ length: 151_936 }, (_, id) => 6 * Math.sin(id * id));
  for (const topP of [1, 0.95]) {
    const ids = [undefined, select].map((choose) => {
      const sampler = new Sampler({ temperature: 1, topK: 0, topP, seed: 1 }, choose);
      return Array.from({ length: 5 }, () => sampler.sample(logits));
    });
    expect(ids[0]).toEqual(ids[1]);
  }
  const nothing = { inverseTemperature: 1, topK: 0, topP: 1, depth: 1, random: 0 };
  for (const row of [[], [Number.NaN, 1], [Number.NEGATIVE_INFINITY], [Number.POSITIVE_INFINITY, 0]])
    expect(nativeSelect()!(Float32Array.from(row), nothing)).toBe(-1);
});

it('e^x is right to 1e-14', () => {
  for (let x = 0; x > -700; x -= 0.37) expect(Math.abs(expNegative(x) / Math.exp(x) - 1)).toBeLessThan(1e-14);
  expect([expNegative(-0), expNegative(-709), expNegative(Number.NEGATIVE_INFINITY)]).toEqual([1, 0, 0]);
});

describe('min-p and typical', () => {
  // Probabilities 1/2, 1/4, 1/8, 1/16, 1/16.
  const row = Float32Array.from([8, 4, 2, 1, 1], Math.log);
  const drawn = (options: SamplerOptions) => {
    const sampler = new Sampler({ temperature: 1, topK: 0, topP: 1, seed: 5, ...options });
    return [...new Set(Array.from({ length: 400 }, () => sampler.sample(row)))].sort();
  };

  it('min-p keeps what is likely enough beside the most likely', () => {
    expect(drawn({ minP: 0.2 })).toEqual([0, 1, 2]);
    expect(drawn({ minP: 0.6 })).toEqual([0]);
    expect(drawn({ minP: 1 })).toEqual([0]);
    expect(drawn({ minP: 0 })).toEqual([0, 1, 2, 3, 4]);
  });

  it('typical keeps what surprises as much as the entropy says', () => {
    // The entropy is 1.875 bits; 2, 3 (1.125 off), then 1 bit (0.875 off) comes before 3 bits.
    expect(drawn({ typicalP: 0.2 })).toEqual([1]);
    expect(drawn({ typicalP: 0.7 })).toEqual([0, 1]);
    expect(drawn({ typicalP: 0.8 })).toEqual([0, 1, 2]);
  });
});
