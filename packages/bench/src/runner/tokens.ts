/** Tokens that models are measured with: of texts, pseudo-random, or drawn from what a model says. */
import { CflowError } from '@cflow/format';
import { randomGenerator, splitStories, type TextTokenizer } from '@cflow/runtime-native';
import { argmax } from './statistics.js';

const SEED = 1;

/** Pseudo-random, the same at every call. */
export function randomIds(count: number, vocabSize: number): number[] {
  const random = randomGenerator(SEED);
  return Array.from({ length: count }, () => Math.floor(random.next() * vocabSize));
}

/** What texts become ids with. */
export interface Reader {
  /** Of the model; undefined if it has none. */
  readonly tokenizer: Pick<TextTokenizer, 'encode'> | undefined;
  /** Tokens of a text at most. */
  readonly contextLength: number;
}

/**
 * Texts, split at <|endoftext|>, as ids: each from its beginning, at most `tokens` in all.
 * @throws CflowError USAGE without a tokenizer, or without a token
 */
export function textIds(texts: string, { tokenizer, contextLength }: Reader, tokens: number): number[][] {
  if (!tokenizer) throw new CflowError('USAGE', 'the model has no tokenizer for the texts');
  const sequences: number[][] = [];
  let left = tokens;
  for (const story of splitStories(texts)) {
    if (left === 0) break;
    const ids = tokenizer.encode(story).slice(0, Math.min(left, contextLength));
    sequences.push(ids);
    left -= ids.length;
  }
  if (sequences.length) return sequences;
  throw new CflowError('USAGE', 'the texts contain no token');
}

/** Chooses what follows, given the logits. Undefined ends the sequence. */
export type Next = (logits: Float32Array) => number | undefined;

/** Draws from the distribution that the logits give, temperature 1: what the model itself would say. */
export function sampler(seed: number, ends: readonly number[]): Next {
  const random = randomGenerator(seed);
  return (logits) => {
    const most = logits[argmax(logits)]!;
    const weights = logits.map((logit) => Math.exp(logit - most));
    let left = random.next() * weights.reduce((a, b) => a + b, 0);
    let id = 0;
    while (id < weights.length - 1 && left >= weights[id]!) left -= weights[id++]!;
    return ends.includes(id) ? undefined : id;
  };
}
