/** The native choice of a token: the ids of src/sampling/selection.ts, at the speed of vectors. */
import type { Select } from '../sampling/selection.js';
import { loadAddon } from './addon.js';

interface SamplingExports {
  /** Arguments as in native/addon/sampling.cpp. */
  selectToken?(logits: Float32Array, ...numbers: number[]): number;
}

/** As `select`, but -1 where a logit is NaN or none is finite; undefined without an addon. Usable in any thread. */
export function nativeSelect(): Select | undefined {
  const choose = (loadAddon() as SamplingExports | undefined)?.selectToken;
  if (!choose) return undefined;
  return (logits, { inverseTemperature, topK, topP, depth, random }) =>
    choose(logits, inverseTemperature, topK, topP, depth, random);
}
