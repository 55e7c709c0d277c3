/** Group quantizers: 32 weights to a scale and integers. Scalar, and the oracle for the native kernels. */
import { f16ToF32, f32ToF16 } from './f16.js';

export const GROUP = 32;

/**
 * Chooses a scale and nibbles for `n` ≤ 32 weights at `values[at]`; nibbles go to `q[0..n)`, 8 (zero) beyond.
 * Returns the f16 bits of the scale. w ≈ s · (q − 8).
 */
export type Q4Quantizer = (values: Float32Array, at: number, n: number, q: Uint8Array) => number;

/** Report §3.10.3: s = max|w| / 7, q = round(w / s) + 8. A scale that underflows f16 is 0, and so is the group. */
export const quantizeQ4Report: Q4Quantizer = (values, at, n, q) => {
  q.fill(8);
  let most = 0;
  for (let i = 0; i < n; i++) most = Math.max(most, Math.abs(values[at + i]!));
  const bits = f32ToF16(most / 7);
  const scale = f16ToF32(bits);
  // Rounded with the scale that is stored, not the one before it was rounded to f16: a reader multiplies by this one.
  if (scale !== 0) assignNibbles(values, at, n, 1 / scale, q);
  return bits;
};

function assignNibbles(values: Float32Array, at: number, n: number, inverse: number, q: Uint8Array): void {
  for (let i = 0; i < n; i++) q[i] = nibble(values[at + i]! * inverse);
}

function nibble(scaled: number): number {
  const rounded = Math.floor(scaled + 8.5);
  return Math.max(0, Math.min(15, rounded));
}

/** Levels that the largest weight is tried at, on its own side of zero; −8 is the side that reaches further. */
const SEARCH_LEVELS = [-8.8, -8.4, -8.1, -7.8, -7.4, -7, -6.6, -6.2, 6.2, 6.6, 7, 7.3];
const trial = new Uint8Array(GROUP);

/**
 * Scale search: for each level, round, refit the scale by least squares, round it to f16, round again; the smallest
 * Σ (w − s(q − 8))² wins. Signed scales let the larger side use all 8 levels. Never worse than the report's rule on a group.
 */
export const quantizeQ4Search: Q4Quantizer = (values, at, n, q) => {
  let best = quantizeQ4Report(values, at, n, q);
  if (best === 0) return 0;
  let bestError = groupError(values, at, n, f16ToF32(best), q);
  const peak = signedPeak(values, at, n);
  for (const level of SEARCH_LEVELS) {
    const scale = refit(values, at, n, level / peak);
    const s = f16ToF32(scale);
    if (s === 0 || !Number.isFinite(s)) continue;
    assignTrial(values, at, n, 1 / s);
    const error = groupError(values, at, n, s, trial);
    if (error < bestError) {
      bestError = error;
      best = scale;
      q.set(trial);
    }
  }
  return best;
};

function assignTrial(values: Float32Array, at: number, n: number, inverse: number): void {
  trial.fill(8);
  assignNibbles(values, at, n, inverse, trial);
}

function signedPeak(values: Float32Array, at: number, n: number): number {
  let peak = 0;
  for (let i = 0; i < n; i++) if (Math.abs(values[at + i]!) > Math.abs(peak)) peak = values[at + i]!;
  return peak;
}

/** f16 bits of the least-squares scale Σ w·l / Σ l² for the levels l that `inverse` rounds to. */
function refit(values: Float32Array, at: number, n: number, inverse: number): number {
  let wl = 0;
  let ll = 0;
  for (let i = 0; i < n; i++) {
    const w = values[at + i]!;
    const level = nibble(w * inverse) - 8;
    wl += w * level;
    ll += level * level;
  }
  return ll === 0 ? 0 : f32ToF16(wl / ll);
}

function groupError(values: Float32Array, at: number, n: number, scale: number, q: Uint8Array): number {
  let error = 0;
  for (let i = 0; i < n; i++) {
    const e = values[at + i]! - scale * (q[i]! - 8);
    error += e * e;
  }
  return error;
}

/** Q8_0: s = max|w| / 127, q = round(w / s). Returns the f16 bits of the scale. */
export function quantizeQ8(values: Float32Array, at: number, n: number, q: Int8Array): number {
  q.fill(0);
  let most = 0;
  for (let i = 0; i < n; i++) most = Math.max(most, Math.abs(values[at + i]!));
  const scale = f32ToF16(most / 127);
  if (f16ToF32(scale) === 0) return 0;
  const inverse = 127 / most;
  for (let i = 0; i < n; i++) q[i] = Math.max(-127, Math.min(127, Math.round(values[at + i]! * inverse)));
  return scale;
}
