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

/** round(scaled) + 8, clamped. `| 0` is floor here: what it rounds up instead is negative, and clamped to 0 either way. */
function nibble(scaled: number): number {
  return Math.max(0, Math.min(15, (scaled + 8.5) | 0));
}

/** Levels that the largest weight is tried at, on its own side of zero; −8 is the side that reaches further. */
const SEARCH_LEVELS = [-8.8, -8.4, -8.1, -7.8, -7.4, -7, -6.6, -6.2, 6.2, 6.6, 7, 7.3];
/** The group as doubles: read some 25 times, converted once. */
const group = new Float64Array(GROUP);

/**
 * Scale search: for each level, round, refit the scale by least squares, round it to f16, round again; the smallest
 * Σ (w − s(q − 8))² wins. Signed scales let the larger side use all 8 levels. Never worse than the report's rule on a group.
 */
export const quantizeQ4Search: Q4Quantizer = (values, at, n, q) => {
  const first = quantizeQ4Report(values, at, n, q);
  if (first === 0) return 0;
  for (let i = 0; i < n; i++) group[i] = values[at + i]!;
  const peak = signedPeak(n);
  let best = first;
  let bestError = groupError(n, f16ToF32(best), Number.POSITIVE_INFINITY);
  let last = first;
  for (let k = 0; k < SEARCH_LEVELS.length; k++) {
    const scale = refit(n, SEARCH_LEVELS[k]! / peak);
    if (scale === last) continue;
    last = scale;
    const s = f16ToF32(scale);
    if (s === 0 || !Number.isFinite(s)) continue;
    const error = groupError(n, s, bestError);
    if (error < bestError) {
      bestError = error;
      best = scale;
    }
  }
  if (best !== first) assignNibbles(values, at, n, 1 / f16ToF32(best), q);
  return best;
};

function signedPeak(n: number): number {
  let peak = 0;
  for (let i = 0; i < n; i++) if (Math.abs(group[i]!) > Math.abs(peak)) peak = group[i]!;
  return peak;
}

/** f16 bits of the least-squares scale Σ w·l / Σ l² for the levels l that `inverse` rounds to. */
function refit(n: number, inverse: number): number {
  let wl = 0;
  let ll = 0;
  for (let i = 0; i < n; i++) {
    const w = group[i]!;
    const level = nibble(w * inverse) - 8;
    wl += w * level;
    ll += level * level;
  }
  return ll === 0 ? 0 : f32ToF16(wl / ll);
}

/** Squared error of the group at a scale; some number over `limit` as soon as it must be over it. */
function groupError(n: number, scale: number, limit: number): number {
  const inverse = 1 / scale;
  let error = 0;
  for (let i = 0; i < n && error < limit; i++) {
    const w = group[i]!;
    const e = w - scale * (nibble(w * inverse) - 8);
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
