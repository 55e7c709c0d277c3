import { describe, expect, it } from 'vitest';
import { f16ToF32, f32ToF16 } from '../src/index.js';

/** IEEE 754: (−1)^s · 2^(e−15) · (1 + m/1024), subnormals (−1)^s · 2^−14 · m/1024. */
function byDefinition(bits: number): number {
  const [s, e, m] = [bits >> 15, (bits >> 10) & 31, bits & 1023];
  const magnitude = e === 0 ? 2 ** -14 * (m / 1024) : 2 ** (e - 15) * (1 + m / 1024);
  return s ? -magnitude : magnitude;
}

const f32 = new Float32Array(1);
const u32 = new Uint32Array(f32.buffer);

/** The f32 next to a positive one. */
function neighbour(value: number, step: 1 | -1): number {
  f32[0] = value;
  u32[0]! += step;
  return f32[0]!;
}

const POSITIVE_FINITE = Array.from({ length: 0x7c00 }, (_, bits) => bits);

describe('f16', () => {
  it('decodes all 65,536 patterns as IEEE 754 defines them', () => {
    for (let bits = 0; bits < 65_536; bits++) {
      const special = (bits & 0x7c00) === 0x7c00;
      const infinite = bits & 0x8000 ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
      const expected = !special ? byDefinition(bits) : bits & 1023 ? Number.NaN : infinite;
      if (!Object.is(f16ToF32(bits), expected)) expect([bits, f16ToF32(bits)]).toEqual([bits, expected]);
    }
  });

  it('encodes every value that it can hold to itself, with its sign', () => {
    const wrong = POSITIVE_FINITE.filter(
      (bits) =>
        f32ToF16(byDefinition(bits)) !== bits || f32ToF16(byDefinition(bits | 0x8000)) !== (bits | 0x8000),
    );
    expect(wrong).toEqual([]);
  });

  it('rounds the midpoint of every two neighbours to the even one, and beside it to the nearer', () => {
    const wrong = POSITIVE_FINITE.slice(0, -1).filter((low) => {
      const middle = (byDefinition(low) + byDefinition(low + 1)) / 2;
      const even = low % 2 ? low + 1 : low;
      return (
        f32ToF16(middle) !== even ||
        f32ToF16(neighbour(middle, -1)) !== low ||
        f32ToF16(neighbour(middle, 1)) !== low + 1
      );
    });
    expect(wrong).toEqual([]);
  });

  it.each([
    ['largest', 65_504, 0x7bff],
    ['below the tie with infinity', 65_519.99609375, 0x7bff],
    ['tie with infinity', 65_520, 0x7c00],
    ['far over', 3.4e38, 0x7c00],
    ['negative overflow', -1e6, 0xfc00],
    ['infinity', Number.POSITIVE_INFINITY, 0x7c00],
    ['smallest subnormal', 2 ** -24, 0x0001],
    ['half of it: tie to zero', 2 ** -25, 0x0000],
    ['just over half of it', 2 ** -25 * (1 + 2 ** -23), 0x0001],
    ['largest subnormal', 1023 * 2 ** -24, 0x03ff],
    ['smallest normal', 2 ** -14, 0x0400],
    ['an f32 subnormal', 1e-40, 0x0000],
    ['negative zero', -0, 0x8000],
    ['one third', 1 / 3, 0x3555],
  ])('%s: %d', (_, value, bits) => {
    expect(f32ToF16(value)).toBe(bits);
  });

  it('keeps NaN a NaN', () => {
    expect(f32ToF16(Number.NaN) & 0x7fff).toBeGreaterThan(0x7c00);
  });
});
