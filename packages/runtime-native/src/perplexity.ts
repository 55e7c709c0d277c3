import { CflowError } from '@cflow/format';
import {
  abortSignal,
  type Checks,
  callback,
  check,
  checkOptions,
  count,
  text as textCheck,
} from '@cflow/format/node';
import type { EngineStats } from './engine.js';
import type { Model } from './model.js';
import { notFiniteRemedy } from './sampling/sampler.js';
import type { SessionStats } from './session.js';

const SEPARATOR = '<|endoftext|>';

/** How much of the texts is taken, and who is told of it. */
export interface PerplexityOptions {
  /** How many texts, from the first; absent = all. */
  readonly stories?: number | undefined;
  /** Tokens of each text, BOS included; default 256. */
  readonly tokens?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Called after each text. */
  readonly onStory?: ((done: number, of: number) => void) | undefined;
  /** Gets the figures of the session of each text. */
  readonly onStats?: ((stats: SessionStats) => void) | undefined;
}

const CHECKS: Checks<PerplexityOptions> = {
  stories: count,
  tokens: count,
  signal: abortSignal,
  onStory: callback,
  onStats: callback,
};

/** How well a model predicts texts. */
export interface Perplexity {
  readonly stories: number;
  /** Tokens predicted, the first of each text not counted. */
  readonly predictedTokens: number;
  /** Mean negative log-likelihood of the predicted tokens, nats. */
  readonly nats: number;
  /** e^nats. */
  readonly perplexity: number;
}

/** Texts of a file: separated by lines `<|endoftext|>`, stripped of surrounding white space, empty ones dropped. */
export function splitStories(text: string): string[] {
  return text
    .split(SEPARATOR)
    .map((story) => story.trim())
    .filter((story) => story !== '');
}

/**
 * Mean loss of a model over the texts of a file, each from an empty context.
 * @throws CflowError USAGE for bad options, without a tokenizer or without a token to predict, LIMIT_EXCEEDED beyond the context
 */
export async function perplexity(
  model: Model,
  text: string,
  options: PerplexityOptions = {},
): Promise<Perplexity> {
  check('text', text, textCheck);
  checkOptions(options, CHECKS);
  const { stories: limit, tokens = 256, onStory } = options;
  const tokenizer = model.requireTokenizer();
  const stories = splitStories(text).slice(0, limit);
  let nats = 0;
  let predictedTokens = 0;
  for (const [index, story] of stories.entries()) {
    const ids = tokenizer.encode(story).slice(0, tokens);
    if (ids.length > 1) nats += await loss(model, ids, options);
    predictedTokens += Math.max(0, ids.length - 1);
    onStory?.(index + 1, stories.length);
  }
  if (predictedTokens === 0) throw new CflowError('USAGE', 'the texts hold no token to predict');
  nats /= predictedTokens;
  return { stories: stories.length, predictedTokens, nats, perplexity: Math.exp(nats) };
}

/** Summed negative log-likelihood of ids[1…] in nats. */
async function loss(
  model: Model,
  ids: readonly number[],
  { signal, onStats }: PerplexityOptions,
): Promise<number> {
  const session = model.createSession();
  let sum = 0;
  const onLogits = (index: number, logits: Float32Array) => {
    sum += negativeLogLikelihood(logits, ids[index + 1]!, () => session.stats());
  };
  try {
    await session.prefill(ids.slice(0, -1), { signal, onLogits });
    onStats?.(session.stats());
  } finally {
    await session.close();
  }
  return sum;
}

/** −ln softmax(logits)[id]. @throws CflowError NONFINITE_WEIGHT if it is NaN, USAGE if there is no logit of that id */
export function negativeLogLikelihood(logits: Float32Array, id: number, stats?: () => EngineStats): number {
  if (id >= logits.length) {
    throw new CflowError('USAGE', `token id ${id} of the text is not one of the model's ${logits.length}`);
  }
  let max = Number.NEGATIVE_INFINITY;
  for (const logit of logits) max = Math.max(max, logit);
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - max);
  const nats = max + Math.log(sum) - logits[id]!;
  if (Number.isNaN(nats)) {
    throw new CflowError('NONFINITE_WEIGHT', 'logits are NaN', {
      remedy: notFiniteRemedy(stats?.()),
    });
  }
  return nats;
}
