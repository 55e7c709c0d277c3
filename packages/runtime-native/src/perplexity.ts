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
import { PERPLEXITY_TOKENS } from './defaults.js';
import type { EngineStats } from './engine.js';
import type { Model } from './model.js';
import { notFiniteRemedy } from './sampling/sampler.js';
import type { SessionStats } from './session.js';

const SEPARATOR = '<|endoftext|>';

/** What is scored, and callbacks. */
export interface PerplexityOptions {
  /** Number of documents, from the first; default all. */
  readonly documents?: number | undefined;
  /** Tokens of each document, including BOS; default 256. */
  readonly tokens?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Called after each document. */
  readonly onDocument?: ((done: number, of: number) => void) | undefined;
  /** Called with the figures of each document's session. */
  readonly onStats?: ((stats: SessionStats) => void) | undefined;
}

const CHECKS: Checks<PerplexityOptions> = {
  documents: count,
  tokens: count,
  signal: abortSignal,
  onDocument: callback,
  onStats: callback,
};

/** How well a model predicts documents. */
export interface Perplexity {
  readonly documents: number;
  /** Predicted tokens: all but the first of each document. */
  readonly predictedTokens: number;
  /** Mean negative log-likelihood of the predicted tokens, nats. */
  readonly nats: number;
  /** e^nats. */
  readonly perplexity: number;
}

/** Documents of an evaluation text: separated by `<|endoftext|>`, trimmed, without empty ones. */
export function splitDocuments(text: string): string[] {
  return text
    .split(SEPARATOR)
    .map((document) => document.trim())
    .filter((document) => document !== '');
}

/**
 * Mean loss of a model over the documents of a text, each from an empty context.
 * @throws CflowError USAGE for bad options, without a tokenizer or without a token to predict; LIMIT_EXCEEDED if a document
 * is longer than the context
 */
export async function perplexity(
  model: Model,
  text: string,
  options: PerplexityOptions = {},
): Promise<Perplexity> {
  check('text', text, textCheck);
  checkOptions(options, CHECKS);
  const { documents: limit, tokens = PERPLEXITY_TOKENS, onDocument } = options;
  const tokenizer = model.requireTokenizer();
  const documents = splitDocuments(text).slice(0, limit);
  let nats = 0;
  let predictedTokens = 0;
  for (const [index, document] of documents.entries()) {
    const ids = tokenizer.encode(document).slice(0, tokens);
    if (ids.length > 1) nats += await loss(model, ids, options);
    predictedTokens += Math.max(0, ids.length - 1);
    onDocument?.(index + 1, documents.length);
  }
  if (predictedTokens === 0) throw new CflowError('USAGE', 'the text has no token to predict');
  nats /= predictedTokens;
  return { documents: documents.length, predictedTokens, nats, perplexity: Math.exp(nats) };
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

/** −ln softmax(logits)[id], nats. @throws CflowError NONFINITE_WEIGHT if it is NaN, USAGE if the id is out of range */
export function negativeLogLikelihood(logits: Float32Array, id: number, stats?: () => EngineStats): number {
  if (id >= logits.length) {
    throw new CflowError(
      'USAGE',
      `token id ${id} of the text is out of range: the model has ${logits.length}`,
    );
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
