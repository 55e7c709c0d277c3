/** The distributions that logits stand for. */
import { argmax } from './statistics.js';

/** Σ p (ln p − ln q) of the softmax of both, nats; at least 0 but for rounding. */
export function klDivergence(p: Float32Array, q: Float32Array): number {
  const [logP, logQ] = [logSoftmax(p), logSoftmax(q)];
  return logP.reduce((sum, lp, i) => sum + Math.exp(lp) * (lp - logQ[i]!), 0);
}

function logSoftmax(logits: Float32Array): Float64Array {
  const most = logits[argmax(logits)]!;
  const sum = logits.reduce((total, logit) => total + Math.exp(logit - most), 0);
  return Float64Array.from(logits, (logit) => logit - most - Math.log(sum));
}
