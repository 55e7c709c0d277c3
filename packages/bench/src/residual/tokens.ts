/** Tokens that a model is watched with: of texts, or drawn from the model itself. */
import { CflowError } from '@cflow/format';
import { Model, randomGenerator, splitStories } from '@cflow/runtime-native';

/** Chooses what follows, given the logits. Undefined ends the sequence. */
export type Next = (logits: Float32Array) => number | undefined;

/**
 * Texts as ids, at most `tokens` in all, each from its beginning and at most a context long.
 * @throws CflowError USAGE without a tokenizer, or without a text
 */
export async function textIds(file: string, texts: string, tokens: number): Promise<number[][]> {
  await using model = await Model.open(file);
  if (!model.tokenizer) throw new CflowError('USAGE', 'the model has no tokenizer', { file });
  const sequences: number[][] = [];
  let left = tokens;
  for (const story of splitStories(texts)) {
    if (left < 2) break;
    const ids = model.tokenizer.encode(story).slice(0, Math.min(left, model.config.contextLength));
    sequences.push(ids);
    left -= ids.length;
  }
  if (!sequences.length) throw new CflowError('USAGE', 'the texts hold no token');
  return sequences;
}

/** Draws from the distribution that the logits give, temperature 1: what the model itself would say. */
export function sampler(seed: number, ends: readonly number[]): Next {
  const random = randomGenerator(seed);
  return (logits) => {
    const most = logits.reduce((a, b) => Math.max(a, b));
    const weights = logits.map((logit) => Math.exp(logit - most));
    let left = random.next() * weights.reduce((a, b) => a + b, 0);
    let id = 0;
    while (id < weights.length - 1 && left >= weights[id]!) left -= weights[id++]!;
    return ends.includes(id) ? undefined : id;
  };
}
