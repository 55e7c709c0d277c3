/** What changes logits before a token is chosen: penalties, biases, and ids that must not be. */
import { CflowError } from '@cflow/format';
import { type Check, type Checks, real, shown } from '@cflow/format/node';

/** Changes a copy of the logits of the next token, [vocabSize]. */
export type LogitsProcessor = (logits: Float32Array, history: History) => void;

/** Tokens of a sequence. */
export interface History {
  /** All ids so far, the prompt's among them. */
  readonly ids: readonly number[];
  /** Where the generated ones begin. */
  readonly promptLength: number;
}

/** Penalties and biases; absent = none. */
export interface ProcessorOptions {
  /** Divides the positive logits of ids of the prompt and the answer, multiplies the negative ones (Keskar et al. 2019). */
  readonly repetitionPenalty?: number | undefined;
  /** Subtracted from the logit of an id for each time that it was generated. */
  readonly frequencyPenalty?: number | undefined;
  /** Subtracted from the logit of an id that was generated. */
  readonly presencePenalty?: number | undefined;
  /** Added to logits, by id; -100 to 100. */
  readonly logitBias?: Readonly<Record<number, number>> | undefined;
  /** Further processors, called last. */
  readonly processors?: readonly LogitsProcessor[] | undefined;
}

const bias: Check = {
  holds: (value) =>
    typeof value === 'object' &&
    value !== null &&
    Object.entries(value).every(
      ([id, added]) => /^\d+$/.test(id) && typeof added === 'number' && added >= -100 && added <= 100,
    ),
  expected: 'an object of token ids and numbers from -100 to 100',
};
const functions: Check = {
  holds: (value) => Array.isArray(value) && value.every((each) => typeof each === 'function'),
  expected: 'an array of functions',
};

/** Checks of `ProcessorOptions`. */
export const PROCESSOR_CHECKS: Checks<ProcessorOptions> = {
  repetitionPenalty: {
    holds: (v) => typeof v === 'number' && v > 0 && v <= 100,
    expected: 'a number above 0, at most 100',
  },
  frequencyPenalty: real(-100, 100),
  presencePenalty: real(-100, 100),
  logitBias: bias,
  processors: functions,
};

/**
 * The processors that the options ask for, in their order.
 * @param gaps ids that no token has: never generated
 * @throws CflowError USAGE for a bias of an id that the model lacks
 */
export function processorsOf(
  options: ProcessorOptions,
  vocabSize: number,
  gaps: readonly number[],
): LogitsProcessor[] {
  const { repetitionPenalty = 1, frequencyPenalty = 0, presencePenalty = 0, logitBias = {} } = options;
  const biases = Object.entries(logitBias).map(([id, added]) => [Number(id), added] as const);
  const unknown = biases.find(([id]) => id >= vocabSize);
  if (unknown) {
    throw new CflowError('USAGE', `${shown(unknown[0])} is not a token id below ${vocabSize}`, {
      field: 'logitBias',
      value: unknown[0],
      limit: vocabSize,
    });
  }
  return [
    ...(repetitionPenalty === 1 ? [] : [repetition(repetitionPenalty)]),
    ...(frequencyPenalty === 0 && presencePenalty === 0
      ? []
      : [frequency(frequencyPenalty, presencePenalty)]),
    ...(biases.length === 0 ? [] : [biased(biases)]),
    ...(options.processors ?? []),
    ...(gaps.length === 0 ? [] : [without(gaps)]),
  ];
}

const repetition =
  (penalty: number): LogitsProcessor =>
  (logits, { ids }) => {
    for (const id of new Set(ids)) {
      if (id < logits.length) logits[id] = logits[id]! > 0 ? logits[id]! / penalty : logits[id]! * penalty;
    }
  };

const frequency =
  (each: number, once: number): LogitsProcessor =>
  (logits, { ids, promptLength }) => {
    const counts = new Map<number, number>();
    for (let i = promptLength; i < ids.length; i++) counts.set(ids[i]!, (counts.get(ids[i]!) ?? 0) + 1);
    for (const [id, count] of counts) if (id < logits.length) logits[id]! -= each * count + once;
  };

const biased =
  (biases: readonly (readonly [number, number])[]): LogitsProcessor =>
  (logits) => {
    for (const [id, added] of biases) logits[id]! += added;
  };

const without =
  (ids: readonly number[]): LogitsProcessor =>
  (logits) => {
    for (const id of ids) logits[id] = Number.NEGATIVE_INFINITY;
  };
