/** Numeric building blocks of the steps. Everything is computed in float64; only buffers are f32. */
import type { Activation, RopeConfig } from '@cflow/format';

/** Σ matrix[offset + i] · x[i] for i < n, in float64. Four sums, so that additions do not wait for one another. */
export function dot(
  matrix: Float32Array,
  offset: number,
  x: Float32Array,
  xOffset: number,
  n: number,
): number {
  let a = 0;
  let b = 0;
  let c = 0;
  let d = 0;
  let i = 0;
  for (; i + 3 < n; i += 4) {
    a += matrix[offset + i]! * x[xOffset + i]!;
    b += matrix[offset + i + 1]! * x[xOffset + i + 1]!;
    c += matrix[offset + i + 2]! * x[xOffset + i + 2]!;
    d += matrix[offset + i + 3]! * x[xOffset + i + 3]!;
  }
  for (; i < n; i++) a += matrix[offset + i]! * x[xOffset + i]!;
  return a + b + (c + d);
}

/** out[r] = matrix[r, :] · x (+ bias[r]); matrix is [out.length, x.length] row-major. */
export function matvec(matrix: Float32Array, x: Float32Array, out: Float32Array, bias?: Float32Array): void {
  const cols = x.length;
  for (let row = 0; row < out.length; row++) {
    out[row] = dot(matrix, row * cols, x, 0, cols) + (bias ? bias[row]! : 0);
  }
}

/** e^(−z²)-free series: erf z = 2/√π · Σ (−1)^k z^(2k+1) / (k! (2k+1)), summed in its all-positive form. */
function erfSeries(z: number): number {
  let term = z;
  let sum = z;
  for (let k = 1; k < 100 && term > sum * 1e-17; k++) {
    term *= (2 * z * z) / (2 * k + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-z * z) * sum;
}

/** erfc z = e^(−z²)/√π · 1/(z + ½/(z + 1/(z + 3⁄2/(z + …)))), evaluated from the inside. */
function erfcFraction(z: number): number {
  let tail = z;
  for (let k = 60; k >= 1; k--) tail = z + k / 2 / tail;
  return Math.exp(-z * z) / Math.sqrt(Math.PI) / tail;
}

/** The error function, to better than 1e-14: a series near zero, a continued fraction in the tails. */
export function erf(x: number): number {
  const z = Math.abs(x);
  const value = z < 2.5 ? erfSeries(z) : z > 6 ? 1 : 1 - erfcFraction(z);
  return x < 0 ? -value : Number.isNaN(x) ? x : value;
}

/** Activations by name; `gelu` is the exact one, `gelu_tanh` its tanh approximation. */
export const ACTIVATION_FUNCTIONS: Record<Activation, (x: number) => number> = {
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x))),
  silu: (x) => x / (1 + Math.exp(-x)),
};

type Scaling = NonNullable<RopeConfig['scaling']>;
/** Where a frequency stands: pair `i` of `rope`, at `position`. */
interface Pair {
  readonly i: number;
  readonly rope: RopeConfig;
  readonly position: number;
}
type ScaleFrequency<T extends Scaling['type']> = (
  frequency: number,
  scaling: Scaling & { type: T },
  pair: Pair,
) => number;

const clamp = (x: number) => Math.min(1, Math.max(0, x));

const SCALED_FREQUENCY: { [T in Scaling['type']]: ScaleFrequency<T> } = {
  linear: (frequency, { factor }) => frequency / factor,
  /** Long waves are divided by the factor, short ones kept, those between are interpolated. */
  llama3: (frequency, s) => {
    const turns = (s.originalContextLength * frequency) / (2 * Math.PI);
    const kept = clamp((turns - s.lowFreqFactor) / (s.highFreqFactor - s.lowFreqFactor));
    return kept * frequency + ((1 - kept) * frequency) / s.factor;
  },
  yarn: (frequency, s, { i, rope }) => {
    const [low, high] = yarnRange(s, rope);
    const divided = clamp((i - low) / (high - low));
    return (1 - divided) * frequency + (divided * frequency) / s.factor;
  },
  dynamic: (frequency, s, { i, rope: { rotaryDim }, position }) => {
    const length = Math.max(position + 1, s.originalContextLength);
    const growth = (s.factor * length) / s.originalContextLength - (s.factor - 1);
    return frequency * growth ** ((-2 * i) / (rotaryDim - 2));
  },
  proportional: (frequency, { pairs, factor }, { i }) => (i < pairs ? frequency / factor : 0),
};

/** The pairs between which YaRN blends: those with betaFast and with betaSlow turns in the original context. */
function yarnRange(s: Scaling & { type: 'yarn' }, { theta, rotaryDim }: RopeConfig): [number, number] {
  const pairWith = (turns: number) =>
    (rotaryDim * Math.log(s.originalContextLength / (turns * 2 * Math.PI))) / (2 * Math.log(theta));
  const [fast, slow] = [pairWith(s.betaFast), pairWith(s.betaSlow)];
  const low = Math.max(s.truncate ? Math.floor(fast) : fast, 0);
  const high = Math.min(s.truncate ? Math.ceil(slow) : slow, rotaryDim - 1);
  return [low, high === low ? high + 0.001 : high];
}

/**
 * Angles per position of the rotated pairs, radians: θ^(−2i/rotaryDim), scaled; [rotaryDim / 2].
 * @param position matters for dynamic scaling only
 */
export function ropeFrequencies(rope: RopeConfig, position = 0): Float64Array {
  const { theta, rotaryDim, scaling } = rope;
  const scale = scaling && (SCALED_FREQUENCY[scaling.type] as ScaleFrequency<Scaling['type']>);
  return Float64Array.from({ length: rotaryDim / 2 }, (_, i) => {
    const frequency = theta ** ((-2 * i) / rotaryDim);
    return scale ? scale(frequency, scaling!, { i, rope, position }) : frequency;
  });
}

/** Softmax of `scores` in place. */
export function softmax(scores: Float64Array): void {
  let max = Number.NEGATIVE_INFINITY;
  for (const score of scores) max = Math.max(max, score);
  let sum = 0;
  for (let i = 0; i < scores.length; i++) {
    scores[i] = Math.exp(scores[i]! - max);
    sum += scores[i]!;
  }
  for (let i = 0; i < scores.length; i++) scores[i] = scores[i]! / sum;
}

/** Indices of the k largest values, largest first; of equal values the lower index first. NaN is never chosen. */
export function topIndices(values: Float32Array, k: number): number[] {
  const chosen: number[] = [];
  while (chosen.length < k) {
    let best = -1;
    for (let i = 0; i < values.length; i++) {
      if (Number.isNaN(values[i]!) || chosen.includes(i)) continue;
      if (best < 0 || values[i]! > values[best]!) best = i;
    }
    if (best < 0) break;
    chosen.push(best);
  }
  return chosen;
}
