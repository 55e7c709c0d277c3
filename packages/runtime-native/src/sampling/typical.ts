/** Locally typical sampling (Meister et al. 2022): candidates whose surprise is near the entropy. */
import type { Candidates } from './selection.js';

/** Chooses among the most typical of the candidates that hold `share` of the probability; `random` in [0, 1). */
export function typical(candidates: Candidates, share: number, random: number): number {
  const ids = candidates.kept().filter((id) => candidates.weight(id) > 0);
  const weights = ids.map((id) => candidates.weight(id));
  const total = sum(weights);
  const surprise = weights.map((weight) => Math.log(total) - Math.log(weight));
  const entropy = sum(surprise.map((nats, i) => (nats * weights[i]!) / total));
  const order = ids.map((_, i) => i);
  order.sort((a, b) => Math.abs(surprise[a]! - entropy) - Math.abs(surprise[b]! - entropy) || a - b);
  const kept: number[] = [];
  let reached = 0;
  for (const i of order) {
    kept.push(i);
    reached += weights[i]!;
    if (reached >= share * total) break;
  }
  let left = random * reached;
  for (const i of kept) {
    left -= weights[i]!;
    if (left < 0) return ids[i]!;
  }
  return ids[kept.at(-1)!]!;
}

const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);
