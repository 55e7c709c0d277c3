/** Tokens for measurements: from documents, pseudo-random, or sampled from the model. */
import { CflowError } from '@cflow/format';
import { splitDocuments, type TextTokenizer } from '@cflow/runtime-native';
import { randomGenerator } from '@cflow/runtime-native/internal/sampling/random.js';
import { argmax } from './statistics.js';

const SEED = 1;

/** Pseudo-random, the same at every call. */
export function randomIds(count: number, vocabSize: number): number[] {
  const random = randomGenerator(SEED);
  return Array.from({ length: count }, () => Math.floor(random.next() * vocabSize));
}

/** Tokenizes documents. */
export interface Reader {
  /** Tokenizer of the model; undefined if it has none. */
  readonly tokenizer: Pick<TextTokenizer, 'encode'> | undefined;
  /** Maximum tokens per document. */
  readonly contextLength: number;
}

/**
 * Token ids of documents, split at <|endoftext|>: each from its beginning, at most `tokens` in total.
 * @throws CflowError USAGE without a tokenizer, or without a token
 */
export function textIds(texts: string, { tokenizer, contextLength }: Reader, tokens: number): number[][] {
  if (!tokenizer) throw new CflowError('USAGE', 'the model has no tokenizer for the documents');
  const sequences: number[][] = [];
  let left = tokens;
  for (const story of splitDocuments(texts)) {
    if (left === 0) break;
    const ids = tokenizer.encode(story).slice(0, Math.min(left, contextLength));
    sequences.push(ids);
    left -= ids.length;
  }
  if (sequences.length) return sequences;
  throw new CflowError('USAGE', 'the documents contain no tokens');
}

/** Chooses the next token from the logits; undefined ends the sequence. */
export type Next = (logits: Float32Array) => number | undefined;

/** Samples from the softmax of the logits at temperature 1. */
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
