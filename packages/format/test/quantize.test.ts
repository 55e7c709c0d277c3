import { random } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import { f16ToF32, type Q4Quantizer, quantizeQ4Report, quantizeQ4Search, quantizeQ8 } from '../src/index.js';

function q4(quantize: Q4Quantizer, values: readonly number[]) {
  const q = new Uint8Array(32);
  const scale = f16ToF32(quantize(Float32Array.from(values), 0, values.length, q));
  return { scale, q: [...q] };
}
function q8(values: readonly number[]) {
  const q = new Int8Array(32);
  const scale = f16ToF32(quantizeQ8(Float32Array.from(values), 0, values.length, q));
  return { scale, q: [...q] };
}
const padded = (values: number[], fill: number) => [...values, ...Array(32 - values.length).fill(fill)];
const error = (values: readonly number[], { scale, q }: { scale: number; q: number[] }) =>
  values.reduce((sum, w, i) => sum + (Math.fround(w) - scale * (q[i]! - 8)) ** 2, 0);
const signed = (next: () => number) => next() / 2 ** 31 - 1;

describe('q4_0 by the rule of the report (s = max|w| / 7, q = round(w / s) + 8)', () => {
  it('quantizes a group worked out by hand: max 7 gives s = 1', () => {
    const values = [7, -7, 3.25, -3.25, 0.49, -0.49, 0.51, -0.51, 6.6, -6.6, 0];
    const expected = [15, 1, 11, 5, 8, 8, 9, 7, 15, 1, 8];
    expect(q4(quantizeQ4Report, values)).toEqual({ scale: 1, q: padded(expected, 8) });
  });

  it('takes the largest magnitude when it is negative: −3.5 gives s = 0.5', () => {
    expect(q4(quantizeQ4Report, [-3.5, 1, 0.5])).toEqual({ scale: 0.5, q: padded([1, 10, 9], 8) });
  });

  it('rounds the scale to f16: max 1 gives 1/7 = 0x3092 = 0.142822265625', () => {
    expect(q4(quantizeQ4Report, [1, -1])).toEqual({ scale: 0.142822265625, q: padded([15, 1], 8) });
  });

  it('starts at the given index and leaves what follows alone', () => {
    const q = new Uint8Array(32);
    const scale = quantizeQ4Report(Float32Array.of(100, 7, 1, 100), 1, 2, q);
    expect([f16ToF32(scale), ...q]).toEqual([1, ...padded([15, 9], 8)]);
  });
});

describe('groups whose scale vanishes', () => {
  const cases: [string, number[]][] = [
    ['all zero', Array(32).fill(0)],
    ['negative zeros', Array(32).fill(-0)],
    ['f32 subnormals', [1e-40, -1e-42, 1e-45]],
    ['a maximum whose scale underflows f16', [2 ** -25 * 6.9, -(2 ** -26)]],
  ];
  it.each(cases)('%s: scale 0, zeros, no NaN', (_, values) => {
    for (const quantize of [quantizeQ4Report, quantizeQ4Search]) {
      expect(q4(quantize, values)).toEqual({ scale: 0, q: Array(32).fill(8) });
    }
  });

  it('the same for q8_0, where all levels of the smallest scale would be 0', () => {
    for (const values of [Array(32).fill(0), [1e-40], [2 ** -25, -(2 ** -26)]]) {
      expect(q8(values)).toEqual({ scale: 0, q: Array(32).fill(0) });
    }
  });

  it('keeps the smallest scale that f16 holds', () => {
    expect(q4(quantizeQ4Report, [7 * 2 ** -24, -3 * 2 ** -24])).toEqual({
      scale: 2 ** -24,
      q: padded([15, 5], 8),
    });
  });
});

describe('q4_0 with scale search', () => {
  it('is never worse than the report on 20,000 groups of every length, scale and shape', () => {
    const next = random(11);
    for (let i = 0; i < 20_000; i++) {
      const magnitude = 2 ** ((next() % 60) - 40);
      const power = 1 + (next() % 4);
      const values = Array.from({ length: 1 + (next() % 32) }, () => signed(next) ** power * magnitude);
      const report = q4(quantizeQ4Report, values);
      const search = q4(quantizeQ4Search, values);
      if (error(values, search) > error(values, report)) expect({ values, search, report }).toBeUndefined();
      if (!search.q.every((q) => q >= 0 && q <= 15)) expect(search).toBeUndefined();
    }
  });

  it('uses the level −8 that the report leaves unused: −8 … 7 times a scale is exact', () => {
    const values = Array.from({ length: 32 }, (_, i) => ((i % 16) - 8) * 0.25);
    const found = q4(quantizeQ4Search, values);
    expect(error(values, found)).toBe(0);
    expect(error(values, q4(quantizeQ4Report, values))).toBeGreaterThan(0.1);
  });

  it('lowers the squared error of normal weights by a tenth at least', () => {
    const next = random(5);
    const normal = () => Array.from({ length: 6 }, () => signed(next)).reduce((a, b) => a + b, 0);
    let [search, report] = [0, 0];
    for (let i = 0; i < 2_000; i++) {
      const values = Array.from({ length: 32 }, normal);
      search += error(values, q4(quantizeQ4Search, values));
      report += error(values, q4(quantizeQ4Report, values));
    }
    expect(search / report).toBeLessThan(0.9);
  });
});

describe('q8_0 (s = max|w| / 127)', () => {
  it('quantizes a group worked out by hand: max 127 gives s = 1', () => {
    expect(q8([127, -127, 1.4, -1.4, 63.6, 0])).toEqual({
      scale: 1,
      q: padded([127, -127, 1, -1, 64, 0], 0),
    });
  });

  it('rounds a subnormal scale up where the largest weight would be clipped: 190 steps of 2^-24 need s = 2^-23', () => {
    expect(q8([190 * 2 ** -24, 2 ** -23])).toEqual({ scale: 2 ** -23, q: padded([95, 1], 0) });
    expect(q8([63 * 2 ** -24, -(2 ** -24)])).toEqual({ scale: 2 ** -24, q: padded([63, -1], 0) });
  });

  it('is off by at most half a step, plus what rounding the scale costs', () => {
    const next = random(3);
    const values = Array.from({ length: 32 }, () => signed(next));
    const { scale, q } = q8(values);
    const worst = Math.max(...values.map((w, i) => Math.abs(w - scale * q[i]!)));
    expect(worst).toBeLessThan(scale * (0.5 + 127 * 2 ** -11));
  });
});

/** 4,096 groups of wide ranges; packages/runtime-native/native/test/quantizer-test.cpp makes the same and has the same hashes. */
function goldenGroups(): Float32Array {
  let state = 42;
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state;
  };
  const words = new Uint32Array(4096 * 32);
  for (let at = 0; at < words.length; at += 32) {
    const top = 95 + ((next() >>> 24) % 50);
    for (let i = at; i < at + 32; i++) {
      const bits = next();
      const exponent = top - (next() >>> 29);
      words[i] = next() >>> 26 === 0 ? 0 : (bits & 0x807fffff) | (exponent << 23);
    }
  }
  return new Float32Array(words.buffer);
}

/** FNV-1a over all scales, then all data. */
function hash(...parts: readonly Uint8Array[]): number {
  let h = 0x811c9dc5;
  for (const part of parts) for (const byte of part) h = Math.imul(h ^ byte, 0x01000193);
  return h >>> 0;
}

describe('the bytes that every implementation gives', () => {
  const groups = goldenGroups();
  const scales = new Uint8Array(2 * 4096);
  const setScale = (g: number, bits: number) => scales.set([bits & 255, bits >> 8], 2 * g);

  it.each([
    ['report', quantizeQ4Report, 1_288_827_182],
    ['search', quantizeQ4Search, 1_962_190_701],
  ] as const)('q4_0 %s', (_, quantize, expected) => {
    const data = new Uint8Array(16 * 4096);
    const q = new Uint8Array(32);
    for (let g = 0; g < 4096; g++) {
      setScale(g, quantize(groups, 32 * g, 32, q));
      for (let j = 0; j < 16; j++) data[16 * g + j] = q[j]! | (q[j + 16]! << 4);
    }
    expect(hash(scales, data)).toBe(expected);
  });

  it('q8_0', () => {
    const data = new Int8Array(32 * 4096);
    for (let g = 0; g < 4096; g++) {
      setScale(g, quantizeQ8(groups, 32 * g, 32, data.subarray(32 * g, 32 * g + 32)));
    }
    expect(hash(scales, new Uint8Array(data.buffer))).toBe(4_090_728_927);
  });
});
