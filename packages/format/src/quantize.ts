/**
 * Group quantizers: 32 weights to a scale and integers. Scalar, and the definition of the native kernels, which give the
 * same bytes: every operation is one of f32, rounded (`Math.fround`), nothing is fused, and sums run over the group in order.
 */
import { f16ToF32, f32ToF16 } from './f16.js';

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

/** The first of the weights of largest magnitude. */
function signedPeak(values: Float32Array, at: number, n: number): number {
  let peak = 0;
  for (let i = at; i < at + n; i++) if (Math.abs(values[i]!) > Math.abs(peak)) peak = values[i]!;
  return peak;
}

/** Adding 1.5 · 2^23 leaves no bit for a fraction. */
const INTEGERS = 12_582_912;

/** The nearest integer, ties to even, of an f32 below 2^22. */
function nearest(value: number): number {
  return f32(f32(value + INTEGERS) - INTEGERS);
}

/** The level −8 … 7 nearest to `scaled`. */
function nearestLevel(scaled: number): number {
  return Math.max(-8, Math.min(7, nearest(scaled)));
}

function assignNibbles(values: Float32Array, at: number, n: number, scale: number, q: Uint8Array): void {
  const inverse = f32(1 / scale);
  for (let i = 0; i < n; i++) q[i] = nearestLevel(f32(values[at + i]! * inverse)) + 8;
}

/** Levels that the largest weight is tried at, on its own side of zero; −8 is the side that reaches further. */
const SEARCH_LEVELS = Float32Array.of(-8.7, -8.2, -7.8, -7.3, -6.7, -6.1, 6.6, 7.2);
/** The search must win by more than the rounding of the sums, so that it never truly loses. */
const MARGIN = f32(1.00002);

/** Σ w·l and Σ l² over a group, for levels l. */
interface Fit {
  wl: number;
  ll: number;
}
const tried: Fit = { wl: 0, ll: 0 };

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
  const fit = bestFit(values, at, n, peak);
  const bits = f32ToF16(fit.wl / fit.ll);
  const scale = f16ToF32(bits);
  const reportScale = f16ToF32(report);
  fitLevels(values, at, n, f32(1 / reportScale), tried);
  const usable = scale !== 0 && Number.isFinite(scale);
  const better = usable && gain(scale, fit) > f32(gain(reportScale, tried) * MARGIN);
  assignNibbles(values, at, n, better ? scale : reportScale, q);
  return better ? bits : report;
};

/**
 * What a scale takes off the sum of squares: Σ w² − Σ (w − s·l)². Rounding once more, with the scale itself, only adds to
 * it. Every weight is below 2^19, and over 2^-23 or of no consequence: no square leaves f32.
 */
function gain(scale: number, { wl, ll }: Fit): number {
  return f32(scale * f32(f32(wl + wl) - f32(scale * ll)));
}

/** Of the levels tried those with the largest (Σ w·l)² / Σ l², the first of equals. */
function bestFit(values: Float32Array, at: number, n: number, peak: number): Fit {
  const reciprocal = f32(1 / peak);
  const best = { square: 0, wl: 0, ll: 1 };
  for (let k = 0; k < SEARCH_LEVELS.length; k++) {
    fitLevels(values, at, n, f32(SEARCH_LEVELS[k]! * reciprocal), tried);
    const { wl, ll } = tried;
    const square = f32(wl * wl);
    // square / ll > best.square / best.ll, without the division.
    if (f32(square * best.ll) > f32(best.square * ll)) Object.assign(best, { square, wl, ll });
  }
  return best;
}

function fitLevels(values: Float32Array, at: number, n: number, inverse: number, fit: Fit): void {
  let wl = 0;
  let ll = 0;
  for (let i = at; i < at + n; i++) {
    const w = values[i]!;
    const level = nearestLevel(f32(w * inverse));
    wl = f32(wl + f32(w * level));
    ll = f32(ll + level * level);
  }
  fit.wl = wl;
  fit.ll = ll;
}

/** Q8_0: s = max|w| / 127, q = round(w / s). Returns the f16 bits of the scale. */
export function quantizeQ8(values: Float32Array, at: number, n: number, q: Int8Array): number {
  q.fill(0);
  const most = Math.abs(signedPeak(values, at, n));
  const scale = f32ToF16(most / 127);
  if (scale === 0) return 0;
  const inverse = f32(127 / most);
  for (let i = 0; i < n; i++) {
    q[i] = Math.max(-127, Math.min(127, nearest(f32(values[at + i]! * inverse))));
  }
  return scale;
}
