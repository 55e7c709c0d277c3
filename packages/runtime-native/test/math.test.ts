import { describe, expect, it } from 'vitest';
import { KvCache } from '../src/reference/kv-cache.js';
import { ACTIVATION_FUNCTIONS, dot, erf, ropeFrequencies, topIndices } from '../src/reference/math.js';

describe('erf', () => {
  // Abramowitz and Stegun, table 7.1, and for the last rows erf to 16 digits.
  const table: [number, number][] = [
    [0, 0],
    [0.1, 0.1124629160182849],
    [0.5, 0.5204998778130465],
    [1, 0.8427007929497149],
    [2, 0.9953222650189527],
    [2.4999999, 0.9995930478],
    [2.5, 0.999593047982555],
    [3, 0.9999779095030014],
    [4, 0.9999999845827421],
    [7, 1],
  ];
  it.each(table)('erf(%d) = %d', (x, expected) => {
    expect(Math.abs(erf(x) - expected)).toBeLessThan(1e-9);
    expect(Math.abs(erf(-x) + expected)).toBeLessThan(1e-9);
  });

  it('keeps NaN and saturates', () => {
    expect(erf(Number.NaN)).toBeNaN();
    expect(erf(Number.POSITIVE_INFINITY)).toBe(1);
    expect(erf(Number.NEGATIVE_INFINITY)).toBe(-1);
  });
});

describe('activations', () => {
  // torch.nn.functional.gelu, gelu(approximate='tanh') and silu in float64.
  it.each([
    ['gelu', 1, 0.8413447460685429],
    ['gelu', -1, -0.15865525393145707],
    ['gelu', 3, 2.99595030590511],
    ['gelu_tanh', 1, 0.8411919906082768],
    ['gelu_tanh', -1, -0.15880800939172324],
    ['silu', 1, 0.7310585786300049],
    ['silu', -2, -0.2384058440442351],
  ] as const)('%s(%d) = %d', (name, x, expected) => {
    expect(ACTIVATION_FUNCTIONS[name](x)).toBeCloseTo(expected, 12);
  });
});

describe('ropeFrequencies', () => {
  it('is θ^(−2i/dim)', () => {
    expect([...ropeFrequencies({ theta: 10_000, rotaryDim: 4 })]).toEqual([1, 0.01]);
  });

  it('divides by a linear factor', () => {
    const scaling = { type: 'linear', factor: 4 } as const;
    expect([...ropeFrequencies({ theta: 10_000, rotaryDim: 4, scaling })]).toEqual([0.25, 0.0025]);
  });

  it('llama3: keeps short waves, divides long ones, interpolates between', () => {
    // Wavelengths 2π, 20π and 200π against an original context of 64 with factors 1 and 4: the first is under 64/4, so
    // kept; the second (62.83) lies between; the third is over 64/1, so divided by 8.
    const scaling = {
      type: 'llama3',
      factor: 8,
      lowFreqFactor: 1,
      highFreqFactor: 4,
      originalContextLength: 64,
    } as const;
    const [short, middle, long] = ropeFrequencies({ theta: 1000, rotaryDim: 6, scaling });
    const smooth = (64 / (20 * Math.PI) - 1) / 3;
    expect(short).toBe(1);
    expect(middle).toBeCloseTo((1 - smooth) * (0.1 / 8) + smooth * 0.1, 12);
    expect(long).toBeCloseTo(0.01 / 8, 12);
  });
});

describe('dot and topIndices', () => {
  it('sums a length that is no multiple of four, from offsets', () => {
    const matrix = Float32Array.of(9, 1, 2, 3, 4, 5);
    const x = Float32Array.of(9, 9, 1, 10, 100, 1000, 10_000);
    expect(dot(matrix, 1, x, 2, 5)).toBe(54_321);
  });

  it('accumulates in float64', () => {
    expect(dot(Float32Array.of(1e8, 1, -1e8, 0, 0), 0, Float32Array.of(1, 1, 1, 1, 1), 0, 5)).toBe(1);
  });

  it('prefers the lower of equal values and never NaN', () => {
    expect(topIndices(Float32Array.of(1, 3, Number.NaN, 3, 2), 3)).toEqual([1, 3, 4]);
  });
});

describe('KvCache', () => {
  it('grows by doubling without a window and keeps every row', () => {
    const cache = new KvCache(1);
    for (let i = 0; i < 33; i++) cache.append(Float32Array.of(i), Float32Array.of(-i));
    expect([cache.length, cache.capacity]).toEqual([33, 64]);
    expect(Array.from({ length: 33 }, (_, i) => cache.keys[cache.offset(i)])).toEqual([...Array(33).keys()]);
  });

  it('is a ring of its window', () => {
    const cache = new KvCache(1, 20);
    for (let i = 0; i < 50; i++) cache.append(Float32Array.of(i), Float32Array.of(-i));
    expect([cache.length, cache.capacity]).toEqual([50, 20]);
    const last = Array.from({ length: 20 }, (_, j) => cache.values[cache.offset(30 + j)]);
    expect(last).toEqual(Array.from({ length: 20 }, (_, j) => -(30 + j)));
  });
});
