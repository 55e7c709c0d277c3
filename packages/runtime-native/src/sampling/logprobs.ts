/** Log-probabilities of tokens. */

/** At most so many alternatives are reported. */
export const MAX_LOGPROBS = 20;

/** Natural logarithms of probabilities. */
export interface Logprobs {
  /** Of the token that was chosen. */
  readonly logprob: number;
  /** The most likely tokens, most likely first. */
  readonly top: readonly { readonly id: number; readonly logprob: number }[];
}

/** @param logits [vocabSize], all of them finite or -Infinity */
export function logprobsOf(logits: Float32Array, id: number, count: number): Logprobs {
  let largest = Number.NEGATIVE_INFINITY;
  for (const logit of logits) if (logit > largest) largest = logit;
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - largest);
  const normalizer = largest + Math.log(sum);
  const top = largestIds(logits, Math.min(count, logits.length));
  return {
    logprob: logits[id]! - normalizer,
    top: top.map((each) => ({ id: each, logprob: logits[each]! - normalizer })),
  };
}

/** Ids of the `count` largest, by insertion: few of a long list are ever inserted. Of equal ones the lower id first. */
function largestIds(logits: Float32Array, count: number): number[] {
  const ids: number[] = [];
  for (let id = 0; count > 0 && id < logits.length; id++) {
    const logit = logits[id]!;
    if (ids.length === count && logit <= logits[ids[count - 1]!]!) continue;
    if (ids.length === count) ids.pop();
    let at = ids.length;
    while (at > 0 && logits[ids[at - 1]!]! < logit) at--;
    ids.splice(at, 0, id);
  }
  return ids;
}
