/** Median, minimum and maximum of a sample. */
export interface Spread {
  readonly median: number;
  readonly min: number;
  readonly max: number;
}

/** @param values at least one, in any order */
export function spread(values: readonly number[]): Spread {
  return { median: median(values), min: Math.min(...values), max: Math.max(...values) };
}

/** Ignores missing values; undefined if all are missing. */
export function spreadOf(values: readonly (number | undefined)[]): Spread | undefined {
  const known = values.filter((value) => value !== undefined);
  return known.length ? spread(known) : undefined;
}

/** @param values at least one, in any order. @returns the mean of the middle two if the count is even */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** Index of the largest value, the first of equals. */
export function argmax(values: Float32Array): number {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i]! > values[best]!) best = i;
  return best;
}

/** Σ p (ln p − ln q) of the softmax of both, nats; at least 0 up to rounding. */
export function klDivergence(p: Float32Array, q: Float32Array): number {
  const [logP, logQ] = [logSoftmax(p), logSoftmax(q)];
  return logP.reduce((sum, lp, i) => sum + Math.exp(lp) * (lp - logQ[i]!), 0);
}

function logSoftmax(logits: Float32Array): Float64Array {
  const most = logits[argmax(logits)]!;
  const sum = logits.reduce((total, logit) => total + Math.exp(logit - most), 0);
  return Float64Array.from(logits, (logit) => logit - most - Math.log(sum));
}

export const rounded = (value: number, digits = 2) => Number(value.toFixed(digits));
