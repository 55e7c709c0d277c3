import { randomInt } from 'node:crypto';
import { CflowError } from '@cflow/format';
import { type Checks, checkOptions, real, whole } from '@cflow/format/node';
import type { EngineStats } from './engine.js';
import { randomGenerator } from './random.js';

/** How the next id is chosen. */
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

/** What `SamplerOptions` are where they are absent. */
export const SAMPLER_DEFAULTS = { temperature: 0.8, topK: 40, topP: 0.95 } as const;

const CHECKS: Checks<SamplerOptions> = {
  temperature: real(0, 100),
  topK: whole(0, 2 ** 31),
  topP: real(0, 1),
  seed: whole(0, 2 ** 32 - 1),
};

/** Up to so many candidates are found in one pass; more are cheaper to sort. */
const FEW = 256;
/** Ids below this fit a number beside the 32 bits of a logit. */
const ID_LIMIT = 2 ** 21;

/** Chooses token ids from logits. */
export class Sampler {
  readonly seed: number;
  readonly #temperature: number;
  readonly #topK: number;
  readonly #topP: number;
  readonly #random: () => number;
  /** Sort keys of all ids, kept from token to token. */
  #keys = new Float64Array(0);

  /** @throws CflowError USAGE if an option is out of range */
  constructor(options: SamplerOptions = {}) {
    checkOptions(options, CHECKS);
    this.seed = options.seed ?? randomInt(2 ** 32);
    this.#temperature = options.temperature ?? SAMPLER_DEFAULTS.temperature;
    this.#topK = options.topK ?? SAMPLER_DEFAULTS.topK;
    this.#topP = options.topP ?? SAMPLER_DEFAULTS.topP;
    this.#random = randomGenerator(this.seed).next;
  }

  /**
   * One id below `vocabSize`: rows of the embedding beyond the tokenizer's vocabulary are never chosen.
   * `stats` are those of the engine that the logits come from, for the remedy in the error.
   * @throws CflowError NONFINITE_WEIGHT if a logit is NaN or none is finite
   */
  sample(logits: Float32Array, vocabSize = logits.length, stats?: () => EngineStats): number {
    const allowed = logits.subarray(0, vocabSize);
    const best = largest(allowed, stats);
    if (this.#temperature === 0) return best;
    const candidates = this.#candidates(allowed);
    const weight = (id: number) => Math.exp((allowed[id]! - allowed[best]!) / this.#temperature);
    const weights = Float64Array.from(candidates, weight);
    return candidates[draw(nucleus(weights, this.#topP), this.#random())]!;
  }

  /** Ids of the k most likely, most likely first, ties to the lower id. */
  #candidates(logits: Float32Array): ArrayLike<number> & Iterable<number> {
    const count = Math.min(this.#topK || logits.length, logits.length);
    return count <= FEW ? fewLargest(logits, count) : this.#sorted(logits).subarray(0, count);
  }

  /** All ids, sorted as numbers: above an id, the bits of its logit in an order in which the largest is the least. */
  #sorted(logits: Float32Array): Float64Array {
    if (logits.length > ID_LIMIT) return sortedByComparison(logits);
    if (this.#keys.length !== logits.length) this.#keys = new Float64Array(logits.length);
    const keys = this.#keys;
    const bits = new Int32Array(1);
    const value = new Float32Array(bits.buffer);
    for (let id = 0; id < logits.length; id++) {
      // Adding 0 makes one zero of both.
      value[0] = logits[id]! + 0;
      const order = bits[0]! >= 0 ? 0x7fffffff - bits[0]! : (bits[0]! & 0x7fffffff) + 2 ** 31;
      keys[id] = order * ID_LIMIT + id;
    }
    keys.sort();
    for (let i = 0; i < keys.length; i++) keys[i] = keys[i]! % ID_LIMIT;
    return keys;
  }
}

/** The same for vocabularies of any size, more slowly. */
function sortedByComparison(logits: Float32Array): Float64Array {
  const ids = Float64Array.from(logits, (_, id) => id);
  return ids.sort((a, b) => logits[b]! - logits[a]! || a - b);
}

/** Ids of the `count` largest, by insertion: few of a long list are ever inserted. */
function fewLargest(logits: Float32Array, count: number): Uint32Array {
  const ids = new Uint32Array(count);
  let found = 0;
  for (let id = 0; id < logits.length; id++) {
    const logit = logits[id]!;
    if (found === count && logit <= logits[ids[count - 1]!]!) continue;
    let at = found < count ? found++ : count - 1;
    for (; at > 0 && logits[ids[at - 1]!]! < logit; at--) ids[at] = ids[at - 1]!;
    ids[at] = id;
  }
  return ids;
}

/** Index of the largest logit, the lower one of equals. */
function largest(logits: Float32Array, stats?: () => EngineStats): number {
  let best = 0;
  for (let id = 0; id < logits.length; id++) {
    if (Number.isNaN(logits[id]!)) notFinite(id, 'NaN', stats);
    if (logits[id]! > logits[best]!) best = id;
  }
  if (!Number.isFinite(logits[best]!)) notFinite(best, String(logits[best]), stats);
  return best;
}

function notFinite(id: number, value: string, stats?: () => EngineStats): never {
  throw new CflowError('NONFINITE_WEIGHT', `the logit of token ${id} is ${value}`, {
    remedy: notFiniteRemedy(stats?.()),
  });
}

/** What to do about logits that are not finite. */
export function notFiniteRemedy(stats?: EngineStats): string {
  const cache = stats?.native?.cache === 'f16' ? 'try --cache f32, as keys or values may exceed f16; ' : '';
  return `${cache}a weight is not finite or overflows: verify the file or convert it again`;
}

const total = (weights: Float64Array) => weights.reduce((sum, weight) => sum + weight, 0);

/** The shortest head of `weights` (largest first) that holds the share `topP` of their sum; at least one. */
function nucleus(weights: Float64Array, topP: number): Float64Array {
  const enough = topP * total(weights);
  let reached = 0;
  let count = 0;
  while (count < weights.length && (count === 0 || reached < enough)) reached += weights[count++]!;
  return weights.subarray(0, count);
}

/** An index, as often as its share of the weights; `random` is in [0, 1). */
function draw(weights: Float64Array, random: number): number {
  let left = random * total(weights);
  const index = weights.findIndex((weight) => {
    left -= weight;
    return left < 0;
  });
  return index < 0 ? weights.length - 1 : index;
}
