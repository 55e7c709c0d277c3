import { randomInt } from 'node:crypto';
import { CflowError } from '@cflow/format';
import { randomGenerator } from './random.js';

export interface SamplerOptions {
  /** 0 = greedy: the largest logit, of equal ones the lower id. */
  readonly temperature?: number | undefined;
  /** Keep the k most likely; 0 = all. */
  readonly topK?: number | undefined;
  /** Keep the most likely until their probabilities reach this; 1 = all. */
  readonly topP?: number | undefined;
  /** Integer of 32 bits; drawn at random if absent. The same seed and logits give the same ids. */
  readonly seed?: number | undefined;
}

export const SAMPLER_DEFAULTS = { temperature: 0.8, topK: 40, topP: 0.95 } as const;

/** Lowest and highest value of each option, and whether it must be whole. */
const RANGES: Record<keyof SamplerOptions, { min: number; max: number; whole: boolean }> = {
  temperature: { min: 0, max: 100, whole: false },
  topK: { min: 0, max: 2 ** 31, whole: true },
  topP: { min: 0, max: 1, whole: false },
  seed: { min: 0, max: 2 ** 32 - 1, whole: true },
};

interface Candidate {
  readonly id: number;
  readonly logit: number;
}

/** Chooses token ids from logits. */
export class Sampler {
  readonly seed: number;
  readonly #temperature: number;
  readonly #topK: number;
  readonly #topP: number;
  readonly #random: () => number;

  /** @throws CflowError USAGE if an option is out of range */
  constructor(options: SamplerOptions = {}) {
    checkOptions(options);
    this.seed = options.seed ?? randomInt(2 ** 32);
    this.#temperature = options.temperature ?? SAMPLER_DEFAULTS.temperature;
    this.#topK = options.topK ?? SAMPLER_DEFAULTS.topK;
    this.#topP = options.topP ?? SAMPLER_DEFAULTS.topP;
    this.#random = randomGenerator(this.seed).next;
  }

  /**
   * One id below `vocabSize`: rows of the embedding beyond the tokenizer's vocabulary are never chosen.
   * @throws CflowError NONFINITE_WEIGHT if a logit is NaN or none is finite
   */
  sample(logits: Float32Array, vocabSize = logits.length): number {
    const allowed = logits.subarray(0, vocabSize);
    const best = largest(allowed);
    if (this.#temperature === 0) return best;
    const candidates = this.#candidates(allowed);
    const weights = candidates.map(({ logit }) => Math.exp((logit - allowed[best]!) / this.#temperature));
    return draw(candidates, nucleus(weights, this.#topP), this.#random());
  }

  /** The k most likely, most likely first, ties to the lower id. */
  #candidates(logits: Float32Array): Candidate[] {
    const all = Array.from(logits, (logit, id) => ({ id, logit }));
    all.sort((a, b) => b.logit - a.logit || a.id - b.id);
    return this.#topK ? all.slice(0, this.#topK) : all;
  }
}

function checkOptions(options: SamplerOptions): void {
  for (const [name, { min, max, whole }] of Object.entries(RANGES)) {
    const value = options[name as keyof SamplerOptions];
    if (value === undefined) continue;
    if (value >= min && value <= max && (!whole || Number.isInteger(value))) continue;
    throw new CflowError(
      'USAGE',
      `${value} is not ${whole ? 'a whole number' : 'a number'} from ${min} to ${max}`,
      {
        field: name,
        value,
      },
    );
  }
}

/** Index of the largest logit, the lower one of equals. */
function largest(logits: Float32Array): number {
  let best = 0;
  for (let id = 0; id < logits.length; id++) {
    if (Number.isNaN(logits[id]!)) notFinite(id, 'NaN');
    if (logits[id]! > logits[best]!) best = id;
  }
  if (!Number.isFinite(logits[best]!)) notFinite(best, String(logits[best]));
  return best;
}

function notFinite(id: number, value: string): never {
  throw new CflowError('NONFINITE_WEIGHT', `the logit of token ${id} is ${value}`, {
    remedy: 'a weight is not finite or overflows; verify the file or convert it again',
  });
}

/** The shortest head of `weights` (largest first) that holds the share `topP` of their sum; at least one. */
function nucleus(weights: number[], topP: number): number[] {
  const enough = topP * weights.reduce((sum, w) => sum + w, 0);
  let reached = 0;
  let count = 0;
  while (count < weights.length && (count === 0 || reached < enough)) reached += weights[count++]!;
  return weights.slice(0, count);
}

function draw(candidates: Candidate[], weights: number[], random: number): number {
  let left = random * weights.reduce((sum, w) => sum + w, 0);
  for (const [i, weight] of weights.entries()) {
    left -= weight;
    if (left < 0) return candidates[i]!.id;
  }
  return candidates[weights.length - 1]!.id;
}
