/** docs/format.md §6, its rules for scales and levels, written down here once more from the text alone. */

import { random } from '@cflow/test-kit/models';
import { describe, expect, it } from 'vitest';
import { quantizeQ4Report, quantizeQ4Search, quantizeQ8 } from '../src/index.js';

const f = Math.fround;

/** The nearest integer, ties to even. */
function nearest(x: number): number {
  const below = Math.floor(x);
  const rest = x - below;
  if (rest !== 0.5) return rest < 0.5 ? below : below + 1;
  return below % 2 === 0 ? below : below + 1;
}

/** The nearest f16 by the definition of binary16: 11 significant bits, steps of 2^-24 at least, up to 65,504. */
function f16(x: number): number {
  const single = f(x);
  if (single === 0) return 0;
  const step = 2 ** Math.max(Math.floor(Math.log2(Math.abs(single))) - 10, -24);
  const rounded = nearest(single / step) * step;
  return Math.abs(rounded) > 65_504 ? Math.sign(rounded) * Number.POSITIVE_INFINITY : rounded;
}

/** The next larger f16. */
function nextF16(x: number): number {
  return x + (x < 2 ** -14 ? 2 ** -24 : 2 ** (Math.floor(Math.log2(x)) - 10));
}

const clip = (l: number, low: number, high: number) => Math.min(high, Math.max(low, l));
const product = (a: number, b: number) => Math.floor((a * b + 2 ** 14) / 2 ** 15);
const gain = (t: number, A: number, B: number) => f(t * f(f(A + A) - f(t * B)));

function largest(w: readonly number[]): number {
  const most = Math.max(...w.map(Math.abs));
  return w.includes(-most) ? -most : most;
}

interface Group {
  readonly s: number;
  /** Levels: q − 8 of q4_0, q of q8_0. */
  readonly l: readonly number[];
}

const zeros = (w: readonly number[]): Group => ({ s: 0, l: w.map(() => 0) });

function levels(w: readonly number[], s: number, low: number, high: number): Group {
  const inverse = f(1 / s);
  return { s, l: w.map((x) => clip(nearest(f(x * inverse)), low, high)) };
}

function report(w: readonly number[]): Group {
  const s = f16(f(Math.abs(largest(w)) / 7));
  return s === 0 ? zeros(w) : levels(w, s, -8, 7);
}

function search(w: readonly number[]): Group {
  const { s: r } = report(w);
  if (r === 0) return zeros(w);
  const p = largest(w);
  const c = f(-32767 / p);
  const u = w.map((x) => nearest(f(x * c)));
  const sums = (level: (unit: number) => number) => {
    const l = u.map((unit) => clip(level(unit), -8, 7));
    return { A: l.reduce((sum, x, i) => sum + u[i]! * x, 0), B: l.reduce((sum, x) => sum + x * x, 0) };
  };
  const tries = [138, 132, 126, 116].map((v) => sums((unit) => product(product(unit, 2 ** 11), v)));
  const best = tries.reduce((kept, next) =>
    f(f(next.A * next.A) * kept.B) > f(f(kept.A * kept.A) * next.B) ? next : kept,
  );
  const s = f16(f(f(best.A / best.B) * f(p / -32767)));
  const t = f(r * c);
  const inverse = nearest(f(2 ** 26 / t));
  const { A, B } = sums((unit) => product(product(unit, inverse), 2 ** 4));
  const limit = f(gain(t, A, B) + f(f(t * t) * f(0.1)));
  const taken = Number.isFinite(s) && s !== 0 && gain(f(s * c), best.A, best.B) > limit;
  return levels(w, taken ? s : r, -8, 7);
}

function q8(w: readonly number[]): Group {
  const most = Math.abs(largest(w));
  if (most <= 2 ** -25) return zeros(w);
  const rounded = f16(f(most / 127));
  return levels(w, most > 127.5 * rounded ? nextF16(rounded) : rounded, -127, 127);
}

/** Groups of every length; magnitudes from below what f16 holds to the largest that q4_0 does. */
function* groups(count: number): Generator<number[]> {
  const next = random(29);
  for (let i = 0; i < count; i++) {
    const magnitude = 2 ** ((next() % 60) - 42);
    const power = 1 + (next() % 4);
    yield Array.from({ length: 1 + (next() % 32) }, () => f((next() / 2 ** 31 - 1) ** power * magnitude));
  }
  // Largest weights that tie, exact levels, and what lies around the steps of subnormal scales.
  yield [1, -1, 1, -1];
  yield Array.from({ length: 32 }, (_, i) => ((i % 16) - 8) * 0.25);
  for (let k = 1; k < 300; k++) yield [f(k * 2 ** -25), f(-k * 2 ** -27), f(k * 1.3 * 2 ** -26)];
}

const decode = (half: number): number => {
  const exponent = (half >> 10) & 31;
  const mantissa = half & 1023;
  const magnitude = exponent === 0 ? mantissa * 2 ** -24 : (1024 + mantissa) * 2 ** (exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
};

describe('the rules of docs/format.md §6', () => {
  const rules = [
    ['report', report, quantizeQ4Report, 8],
    ['search', search, quantizeQ4Search, 8],
    ['q8_0', q8, quantizeQ8, 0],
  ] as const;

  it.each(rules)('%s: the text and the code choose the same scale and levels', (_, text, code, zero) => {
    for (const w of groups(4_000)) {
      const q = zero === 0 ? new Int8Array(32) : new Uint8Array(32);
      const half = (code as (v: Float32Array, at: number, n: number, q: Uint8Array | Int8Array) => number)(
        Float32Array.from(w),
        0,
        w.length,
        q,
      );
      const found = { s: decode(half), l: Array.from(q.subarray(0, w.length), (x) => x - zero) };
      const { s, l } = text(w);
      // −0 is 0 in both; toEqual tells them apart.
      expect(found).toEqual({ s: s + 0, l: l.map((x) => x + 0) });
    }
  });

  it('q8_0 is off by at most half a step of the stored scale, and never worse than q4_0, however small the group', () => {
    for (const w of groups(4_000)) {
      const q = new Int8Array(32);
      const s = decode(quantizeQ8(Float32Array.from(w), 0, w.length, q));
      const most = Math.max(...w.map(Math.abs));
      const worst = Math.max(...w.map((x, i) => Math.abs(x - s * q[i]!)));
      // Half a step, or what f16 as a scale leaves of it.
      expect(worst).toBeLessThanOrEqual(Math.max(0.5 * s * 1.001, 2 ** -25));
      const four = report(w);
      const worstFour = Math.max(...w.map((x, i) => Math.abs(x - four.s * four.l[i]!)));
      if (most > 2 ** -20) expect(worst).toBeLessThanOrEqual(worstFour + 0.5 * s);
    }
  });
});
