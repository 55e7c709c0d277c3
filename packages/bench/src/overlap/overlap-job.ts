/** What a child of `cflow-bench overlap` is asked, and what it answers. */
import type { NativeTierStats, OpenModelOptions, TierChoice } from '@cflow/runtime-native';

export interface OverlapLengths {
  /** Tokens of the prompt that the first token waits for. */
  readonly prompt: number;
  /** Tokens decoded before anything is timed, so that the cache of experts is in a steady state. */
  readonly warmup: number;
  /** Tokens decoded and timed, one by one. */
  readonly tokens: number;
}

export interface OverlapJob {
  readonly file: string;
  readonly options: OpenModelOptions;
  readonly lengths: OverlapLengths;
  /** Folder of a memory cgroup to run in. */
  readonly group?: string | undefined;
}

/** Of one child; seconds and bytes. Figures are of the timed tokens alone where nothing else is said. */
export interface OverlapRun {
  readonly openSeconds: number;
  /** From an opened model to the logits of a prompt: no expert is in memory. */
  readonly firstTokenSeconds: number;
  readonly tokenSeconds: readonly number[];
  /** Weight bytes that steps read from memory. */
  readonly weightBytes: number;
  readonly tiers: Pick<
    NativeTierStats,
    'hits' | 'predicted' | 'misses' | 'ahead' | 'stallSeconds' | 'bytesRead' | 'busySeconds'
  >;
  /** How it was read; empty where both O_DIRECT and io_uring work. */
  readonly how: Pick<NativeTierStats, 'slots' | 'direct' | 'uring' | 'reason'>;
  readonly choice: TierChoice;
  /** Of the whole run. */
  readonly peakBytes: number;
  /** The most likely token after each timed one. */
  readonly chosen: readonly number[];
  /** SHA-256 of the logits after all timed tokens: equal where every bit is. */
  readonly digest: string;
}
