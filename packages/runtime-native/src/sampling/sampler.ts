import { randomInt } from 'node:crypto';
import { CflowError } from '@cflow/format';
import { type Checks, checkOptions, real, whole } from '@cflow/format/node';
import { SAMPLER_DEFAULTS } from '../defaults.js';
import type { EngineStats } from '../engine.js';
import { nativeSelect } from '../native/sampling.js';
import { randomGenerator } from './random.js';
import { candidatesOf, type Select, select } from './selection.js';
import { typical } from './typical.js';

/** How the next id is chosen; in the order of transformers: temperature, top-k, top-p, min-p, typical. */
export interface SamplerOptions {
  /** 0 = greedy: the largest logit, of equal ones the lower id. */
  readonly temperature?: number | undefined;
  /** Keep the k most likely; 0 = all. */
  readonly topK?: number | undefined;
  /** Keep the most likely until their probabilities reach this; 1 = all. */
  readonly topP?: number | undefined;
  /** Keep what is at least this times as likely as the most likely (Nguyen et al. 2024); 0 = all. */
  readonly minP?: number | undefined;
  /** Keep the most typical until their probabilities reach this (Meister et al. 2022); 1 = all. */
  readonly typicalP?: number | undefined;
  /** Integer of 32 bits; drawn at random if absent. The same seed and logits give the same ids. */
  readonly seed?: number | undefined;
}

/** Checks of `SamplerOptions`. */
export const SAMPLER_CHECKS: Checks<SamplerOptions> = {
  temperature: real(0, 100),
  topK: whole(0, 2 ** 31),
  topP: real(0, 1),
  minP: real(0, 1),
  typicalP: real(0, 1),
  seed: whole(0, 2 ** 32 - 1),
};

/** Lower temperatures choose the largest logit as well, without numbers that overflow. */
const COLDEST = 1e-6;

/** Chooses token ids from logits. */
export class Sampler {
  readonly seed: number;
  readonly #options: Readonly<Record<keyof typeof SAMPLER_DEFAULTS, number>>;
  readonly #random: () => number;
  readonly #select: Select;

  /**
   * @param choose for tests: how an id is selected; absent = natively, where there is an addon
   * @throws CflowError USAGE if an option is out of range
   */
  constructor(options: SamplerOptions = {}, choose: Select = nativeSelect() ?? select) {
    checkOptions(options, SAMPLER_CHECKS);
    this.seed = options.seed ?? randomInt(2 ** 32);
    this.#options = {
      temperature: options.temperature ?? SAMPLER_DEFAULTS.temperature,
      topK: options.topK ?? SAMPLER_DEFAULTS.topK,
      topP: options.topP ?? SAMPLER_DEFAULTS.topP,
      minP: options.minP ?? SAMPLER_DEFAULTS.minP,
      typicalP: options.typicalP ?? SAMPLER_DEFAULTS.typicalP,
    };
    this.#random = randomGenerator(this.seed).next;
    this.#select = choose;
  }

  /**
   * One id below `vocabSize`: rows of the embedding beyond the tokenizer's vocabulary are never chosen.
   * `stats` are those of the engine that the logits come from, for the remedy in the error.
   * @throws CflowError NONFINITE_WEIGHT if a logit is NaN or none is finite
   */
  sample(logits: Float32Array, vocabSize = logits.length, stats?: () => EngineStats): number {
    const allowed = logits.subarray(0, vocabSize);
    const { temperature, topK, topP, minP, typicalP } = this.#options;
    if (temperature < COLDEST) return largest(allowed, stats);
    const cuts = { inverseTemperature: 1 / temperature, topK, topP, depth: -Math.log(minP) * temperature };
    const random = this.#random();
    if (typicalP < 1 || this.#select === select) largest(allowed, stats);
    if (typicalP < 1) return typical(candidatesOf(allowed, cuts), typicalP, random);
    const id = this.#select(allowed, { ...cuts, random });
    return id < 0 ? largest(allowed, stats) : id;
  }
}

/** Index of the largest logit, the lower one of equals. @throws CflowError NONFINITE_WEIGHT as `sample` */
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
