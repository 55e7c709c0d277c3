import { CflowError } from '@cflow/format';
import { describe, expect, it } from 'vitest';
import { randomGenerator } from '../src/sampling/random.js';
import { Sampler } from '../src/sampling/sampler.js';
import { TextTokenizer } from '../src/text/tokenizer.js';
import { tokenizerMetadata } from './model-file.js';

const tokenizer = new TextTokenizer(tokenizerMetadata());
/** Ids of the test vocabulary: three special tokens, 256 bytes, then the pieces. */
const byte = (value: number) => 3 + value;
const [SPACE, A, B, SPACE_AB] = [259, 260, 261, 263];

describe('TextTokenizer', () => {
  it('adds BOS as the post-processor says, and never twice', () => {
    expect(tokenizer.encode('ab')).toEqual([1, SPACE_AB]);
    expect(tokenizer.encode('<s>ab')).toEqual([1, SPACE_AB]);
    expect(tokenizer.encode('')).toEqual([1]);
  });

  it('falls back to bytes', () => {
    expect(tokenizer.encode('€')).toEqual([1, SPACE, byte(0xe2), byte(0x82), byte(0xac)]);
  });

  it('decodes without special tokens and ignores ids beyond the vocabulary', () => {
    expect(tokenizer.decode([1, SPACE_AB, A, 9999, 2])).toBe('aba');
    expect(tokenizer.decode([1])).toBe('');
  });

  it('names the document that does not parse', () => {
    expect(() => new TextTokenizer({ tokenizerJson: '{', vocabSize: 1 })).toThrowError(/tokenizer\.json/);
  });
});

describe('TextStream', () => {
  it('never emits part of a character', () => {
    const stream = tokenizer.stream([1]);
    const pieces = [A, byte(0xe2), byte(0x82), byte(0xac), B].map((id) => stream.push(id));
    expect(pieces).toEqual(['a', '', '', '€', 'b']);
  });

  it('keeps spaces between pieces and drops the first one only', () => {
    const ids = [SPACE_AB, SPACE_AB, A, 2, SPACE_AB];
    const stream = tokenizer.stream([1]);
    expect(ids.map((id) => stream.push(id)).join('')).toBe('ab aba ab');
    expect(tokenizer.decode([1, ...ids])).toBe('ab aba ab');
  });

  it('goes on where the prompt ended', () => {
    expect(tokenizer.stream([1, SPACE_AB]).push(SPACE_AB)).toBe(' ab');
  });

  it('gives up on broken bytes and flushes what is held', () => {
    const stream = tokenizer.stream([1]);
    expect([0xff, 0xff, 0xff, 0xff].map((b) => stream.push(byte(b))).join('')).toMatch(/^\uFFFD+$/);
    expect(stream.push(byte(0xe2))).toBe('');
    expect(stream.flush()).toBe('\uFFFD');
    expect(stream.push(A)).toBe('a');
  });
});

describe('randomGenerator', () => {
  it('is xoshiro128** over splitmix32', () => {
    // From the published C of both, with seed 0.
    const { nextUint32 } = randomGenerator(0);
    expect([nextUint32(), nextUint32(), nextUint32(), nextUint32()]).toEqual([
      1789933344, 44971166, 2521387044, 3848737593,
    ]);
  });

  it('is even over [0, 1)', () => {
    const { next } = randomGenerator(7);
    const values = Array.from({ length: 20_000 }, next);
    expect(values.every((v) => v >= 0 && v < 1)).toBe(true);
    expect(values.reduce((a, b) => a + b) / values.length).toBeCloseTo(0.5, 1);
  });
});

describe('Sampler', () => {
  const logits = Float32Array.of(Math.log(1), Math.log(5), Math.log(4), Math.log(5), 50);

  it('is greedy at temperature 0, ties to the lower id, and stays inside the vocabulary', () => {
    expect(new Sampler({ temperature: 0 }).sample(logits, 4)).toBe(1);
    expect(new Sampler({ temperature: 0 }).sample(logits)).toBe(4);
  });

  const draws = (options: ConstructorParameters<typeof Sampler>[0]) => {
    const sampler = new Sampler({ temperature: 1, topK: 0, topP: 1, seed: 1, ...options });
    const counts = [0, 0, 0, 0, 0];
    for (let i = 0; i < 15_000; i++) counts[sampler.sample(logits, 4)]!++;
    return counts.map((n) => n / 15_000);
  };

  it('draws in proportion to the probabilities', () => {
    const expected = [1 / 15, 5 / 15, 4 / 15, 5 / 15, 0];
    for (const [id, share] of draws({}).entries())
      expect(Math.abs(share - expected[id]!)).toBeLessThan(0.015);
  });

  it('temperature sharpens: at ½ the probabilities are squared', () => {
    const expected = [1 / 67, 25 / 67, 16 / 67, 25 / 67, 0];
    const shares = draws({ temperature: 0.5 });
    for (const [id, share] of shares.entries()) expect(Math.abs(share - expected[id]!)).toBeLessThan(0.015);
  });

  it('top-k and top-p cut the tail', () => {
    expect(draws({ topK: 2 }).map((share) => share > 0)).toEqual([false, true, false, true, false]);
    // 5/15 + 5/15 reaches 0.6; 0.7 needs the third.
    expect(draws({ topP: 0.6 }).map((share) => share > 0)).toEqual([false, true, false, true, false]);
    expect(draws({ topP: 0.7 }).map((share) => share > 0)).toEqual([false, true, true, true, false]);
    expect(draws({ topP: 0 }).map((share) => share > 0)).toEqual([false, true, false, false, false]);
  });

  it('repeats with the seed', () => {
    const ids = (seed: number) => {
      const sampler = new Sampler({ seed });
      return Array.from({ length: 40 }, () => sampler.sample(logits, 4));
    };
    expect(ids(3)).toEqual(ids(3));
    expect(ids(3)).not.toEqual(ids(4));
  });

  it('refuses NaN and options out of range', () => {
    expect(() => new Sampler().sample(Float32Array.of(1, Number.NaN))).toThrowError(CflowError);
    expect(() => new Sampler().sample(Float32Array.of(Number.NEGATIVE_INFINITY))).toThrowError(/-Infinity/);
    for (const bad of [
      { temperature: -1 },
      { topK: 1.5 },
      { topP: 2 },
      { seed: -1 },
      { temperature: Number.NaN },
    ]) {
      expect(() => new Sampler(bad)).toThrowError(CflowError);
    }
  });
});
