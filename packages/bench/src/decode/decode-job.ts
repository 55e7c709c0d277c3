/** What a child of `cflow-bench decode` is asked, and what it answers. */
import type { NativeStats, OpenModelOptions, ProfileEntry } from '@cflow/runtime-native';

/** How many tokens each part has. */
export interface Lengths {
  /** Tokens decoded one by one, timed. */
  readonly tokens: number;
  /** Tokens of the timed prefill. */
  readonly prefill: number;
  /** Tokens passed before anything is timed, so that every page and expert has been touched. */
  readonly warmup: number;
  /** Where it is not 0, `tokens` are decoded once more, behind so many. */
  readonly context: number;
}

export type DecodeJob =
  | {
      readonly kind: 'cflow';
      readonly file: string;
      readonly lengths: Lengths;
      readonly options: OpenModelOptions;
    }
  | {
      readonly kind: 'llama.cpp';
      readonly file: string;
      readonly lengths: Lengths;
      readonly threads: number;
    };

/** Of one child; seconds and bytes. */
export interface DecodeRun {
  /** Until a session stands. */
  readonly openSeconds: number;
  /** From there to the logits of a prompt of one token: the first touch of the weights. */
  readonly firstTokenSeconds: number;
  /** By so much more of mapped files is in memory then than before the model was opened: weights that were touched. */
  readonly firstTokenFileBytes?: number | undefined;
  readonly prefillSeconds: number;
  /** For `tokens` tokens: one by one, greedy, choosing included. */
  readonly decodeSeconds: number;
  /** For as many behind `context` tokens. */
  readonly contextDecodeSeconds?: number | undefined;
  /** Seconds of each token. */
  readonly tokenSeconds: readonly number[];
  readonly peakBytes: number;
  /** What computes: engine and instruction set, or the backend's own words. */
  readonly backend: string;
  /** Weight bytes that decoding read, by the engine's count. */
  readonly bytesPerToken?: number | undefined;
  readonly native?: Omit<NativeStats, 'profile'> | undefined;
  /** Of the timed part alone; empty unless the engine collects it. */
  readonly decodeProfile?: readonly ProfileEntry[] | undefined;
  readonly prefillProfile?: readonly ProfileEntry[] | undefined;
}

/** Tokens of a text that means nothing, the same for every engine; none is special. */
export function promptIds(count: number, vocabSize: number, seed = 1): number[] {
  const first = Math.min(300, vocabSize - 1);
  return Array.from({ length: count }, (_, i) => first + (((i + seed) * 7919) % (vocabSize - first)));
}
