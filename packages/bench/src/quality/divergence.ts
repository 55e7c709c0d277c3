/** How far a model's predictions lie from those of the exact one. */
import type { Model } from '@cflow/runtime-native';
import { klDivergence } from '../harness/distribution.js';
import { argmax } from '../harness/statistics.js';

export interface Divergence {
  /** Mean over the positions of KL(exact ‖ model), nats. */
  readonly kl: number;
  /** Share of the positions at which both find the same token most likely. */
  readonly sameToken: number;
}

/** Over every position of every text. @param texts token ids, at least one text with a token */
export async function divergence(
  exact: Model,
  model: Model,
  texts: readonly (readonly number[])[],
): Promise<Divergence> {
  let [kl, same, positions] = [0, 0, 0];
  for (const ids of texts) {
    const expected = await logitsOf(exact, ids);
    for (const [i, logits] of (await logitsOf(model, ids)).entries()) {
      kl += klDivergence(expected[i]!, logits);
      if (argmax(expected[i]!) === argmax(logits)) same++;
      positions++;
    }
  }
  return { kl: kl / positions, sameToken: same / positions };
}

async function logitsOf(model: Model, ids: readonly number[]): Promise<Float32Array[]> {
  const all: Float32Array[] = [];
  const session = model.createSession();
  try {
    if (ids.length) await session.prefill(ids, { onLogits: (_, logits) => void all.push(logits.slice()) });
  } finally {
    await session.close();
  }
  return all;
}
