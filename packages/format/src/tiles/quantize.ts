/**
 * Group quantizers: 32 weights to a scale and integers. Scalar, and the definition of the native kernels, which give the
 * same bytes: every operation is one of f32, rounded (`Math.fround`) and not fused, or one of integers.
 */
import { f16ToF32, f32ToF16 } from './f16.js';

/** Weights that share a scale. */
export const GROUP = 32;
const f32 = Math.fround;

/**
 * Chooses a scale and nibbles for `n` ≤ 32 weights at `values[at]`; nibbles go to `q[0..n)`, 8 (zero) beyond.
 * Returns the f16 bits of the scale. w ≈ s · (q − 8).
 */
export type Q4Quantizer = (values: Float32Array, at: number, n: number, q: Uint8Array) => number;

/** Report §3.10.3: s = max|w| / 7, q = round(w / s) + 8. A scale that underflows f16 is 0, and so is the group. */
export const quantizeQ4Report: Q4Quantizer = (values, at, n, q) => {
  q.fill(8);
  const bits = f32ToF16(Math.abs(signedPeak(values, at, n)) / 7);
  const scale = f16ToF32(bits);
  // Rounded with the scale that is stored, not the one before it was rounded to f16: a reader multiplies by this one.
  if (scale !== 0) assignNibbles(values, at, n, scale, q);
  return bits;
};

/** The weight of largest magnitude, the negative one of two. */
function signedPeak(values: Float32Array, at: number, n: number): number {
  let most = 0;
  let least = 0;
  for (let i = at; i < at + n; i++) {
    const value = values[i]!;
    if (value > most) most = value;
    else if (value < least) least = value;
  }
  return most > -least ? most : least;
}

/** Adding 1.5 · 2^23 leaves no bit for a fraction. */
const INTEGERS = 12_582_912;

/** The nearest integer, ties to even, of an f32 below 2^22. */
function nearest(value: number): number {
  return f32(f32(value + INTEGERS) - INTEGERS);
}

/** The level −8 … 7 next to an integer. */
function clampLevel(level: number): number {
  return Math.max(-8, Math.min(7, level));
}

function assignNibbles(values: Float32Array, at: number, n: number, scale: number, q: Uint8Array): void {
  const inverse = f32(1 / scale);
  for (let i = 0; i < n; i++) q[i] = clampLevel(nearest(f32(values[at + i]! * inverse))) + 8;
}

/** Levels that the largest weight is tried at, in sixteenths: of −8, the side that reaches further. */
const SEARCH_LEVELS = [138, 132, 126, 116];
/** Weights as integers of 16 bits: the largest becomes −32767. */
const UNITS = -32_767;
/**
 * The search must win by so much, in squares of the report's scale: more than what rounding to integers can feign. A
 * weight is off by 2^-16 of the largest, a level of the report's by 2^-10.7 of a step where it lies between two.
 */
const MARGIN = f32(0.1);

/** Σ w·l and Σ l² over a group, for levels l. */
interface Fit {
  wl: number;
  ll: number;
}
const tried: Fit = { wl: 0, ll: 0 };
const units = new Int16Array(GROUP);

/**
 * Scale search: of the levels l that each of SEARCH_LEVELS rounds the group to, those with the largest (Σ w·l)² / Σ l²
 * have the least squared error under their best scale, which is Σ w·l / Σ l². That scale, in f16, is taken if it gains
 * more than the report's. Signed scales let the larger side use all 8 levels.
 */
export const quantizeQ4Search: Q4Quantizer = (values, at, n, q) => {
  q.fill(8);
  const peak = signedPeak(values, at, n);
  const report = f32ToF16(Math.abs(peak) / 7);
  if (report === 0) return 0;
  const perWeight = f32(UNITS / peak);
  for (let i = 0; i < n; i++) units[i] = nearest(f32(values[at + i]! * perWeight));
  const fit = bestFit(n);
  const bits = f32ToF16(f32(f32(fit.wl / fit.ll) * f32(peak / UNITS)));
  const scale = f16ToF32(bits);
  const reportScale = f16ToF32(report);
  const usable = scale !== 0 && Number.isFinite(scale);
  const better = usable && gain(f32(scale * perWeight), fit) > reportLimit(n, f32(reportScale * perWeight));
  assignNibbles(values, at, n, better ? scale : reportScale, q);
  return better ? bits : report;
};

/** The gain of the report's rule with what it must be beaten by. `scale`: the report's, in units. */
function reportLimit(n: number, scale: number): number {
  const inverse = nearest(f32(2 ** 26 / scale));
  fitLevels(n, (unit) => scaled(scaled(unit, inverse), 2 ** 4), tried);
  return f32(gain(scale, tried) + f32(f32(scale * scale) * MARGIN));
}

/**
 * What a scale takes off the sum of squares: Σ w² − Σ (w − s·l)². Rounding once more, with the scale itself, only adds to
 * it.
 */
function gain(scale: number, { wl, ll }: Fit): number {
  return f32(scale * f32(f32(wl + wl) - f32(scale * ll)));
}

/** Of the levels tried those with the largest (Σ w·l)² / Σ l², the first of equals. */
function bestFit(n: number): Fit {
  const best = { square: 0, wl: 0, ll: 1 };
  for (const sixteenths of SEARCH_LEVELS) {
    fitLevels(n, (unit) => scaled(scaled(unit, 2 ** 11), sixteenths), tried);
    const { wl, ll } = tried;
    const square = f32(wl * wl);
    // square / ll > best.square / best.ll, without the division.
    if (f32(square * best.ll) > f32(best.square * ll)) Object.assign(best, { square, wl, ll });
  }
  return best;
}

/** The rounded product of two integers of 16 bits, as fractions of 2^15. */
function scaled(a: number, b: number): number {
  return (a * b + 2 ** 14) >> 15;
}

/** Both sums stay below 2^24, which f32 holds exactly. */
function fitLevels(n: number, levelOf: (unit: number) => number, fit: Fit): void {
  let wl = 0;
  let ll = 0;
  for (let i = 0; i < n; i++) {
    const unit = units[i]!;
    const level = clampLevel(levelOf(unit));
    wl += unit * level;
    ll += level * level;
  }
  fit.wl = wl;
  fit.ll = ll;
}

/** Weights up to here round to level 0 of the smallest scale that f16 holds. */
const HALF_LEAST_SCALE = 2 ** -25;

/**
 * Q8_0: s = max|w| / 127, q = round(w / s), with the scale that is stored. Returns the f16 bits of the scale.
 * f16 subnormals are too coarse for 127 levels: where rounding to nearest makes the scale so small that the largest
 * weight would be clipped, the next f16 is taken.
 */
export function quantizeQ8(values: Float32Array, at: number, n: number, q: Int8Array): number {
  q.fill(0);
  const most = Math.abs(signedPeak(values, at, n));
  const nearestBits = f32ToF16(most / 127);
  const clips = most > 127.5 * f16ToF32(nearestBits) && most > HALF_LEAST_SCALE;
  const bits = clips ? nearestBits + 1 : nearestBits;
  if (bits === 0) return 0;
  const inverse = f32(1 / f16ToF32(bits));
  for (let i = 0; i < n; i++) {
    q[i] = Math.max(-127, Math.min(127, nearest(f32(values[at + i]! * inverse))));
  }
  return bits;
}
