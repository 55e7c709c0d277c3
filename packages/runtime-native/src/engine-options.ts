/** What an engine is opened with. */
import type { TransferMode } from '@cflow/format';
import type { NativeDirectOptions, NativeEngineOptions } from './native/addon.js';

/** All but `transfers` concern the native engine only. */
export interface EngineOptions {
  /** Where the plan puts its transfers; absent = what suits, `none` for the reference engine. */
  readonly transfers?: TransferMode | undefined;
  /**
   * Threads that compute, 1 to 1024; they share every phase. Absent = what affinity and cgroup quota allow, and phases that
   * are too short to share run on one thread.
   */
  readonly threads?: number | undefined;
  /**
   * `mapped`: in the page cache; opening is immediate. `resident`: read into huge pages first, which decodes faster.
   * `direct`: as much in memory as the budget allows, the rest fetched from disk while the model runs. `auto`, the
   * default: resident if weights, caches and vectors fit the budget, else direct.
   */
  readonly weights?: 'auto' | NativeEngineOptions['weights'] | undefined;
  /** Bytes that the process may use; absent = most of what the system and its cgroup have left. */
  readonly memory?: number | undefined;
  /** Positions whose keys and values the budget keeps room for; absent = 2,048, or the context if that is shorter. */
  readonly context?: number | undefined;
  /** Overrides what is chosen for weights that are fetched. */
  readonly direct?: Partial<Omit<NativeDirectOptions, 'readAhead'>> | undefined;
  /** Keep which experts the routings choose. */
  readonly recordRoutings?: boolean | undefined;
  /** `q8`: int8 activations in front of quantized tiles, the default there; `f32`: exact. */
  readonly arithmetic?: NativeEngineOptions['arithmetic'] | undefined;
  /** Storage of keys and values; absent = f16 with q8 arithmetic, else f32. */
  readonly cache?: NativeEngineOptions['cache'] | undefined;
  /**
   * Memory for the keys and values of a session, bytes; the oldest go to disk beyond it. Absent = as much as they need,
   * or what `memory` leaves.
   */
  readonly cacheMemory?: number | undefined;
  /** Where these go: a file without a name, gone with the session. Absent = TMPDIR, else /var/tmp, else the system's. */
  readonly spillDirectory?: string | undefined;
  /** Tokens of one batch of a prefill. */
  readonly maxBatch?: number | undefined;
  /** Instruction set; absent = the environment's CFLOW_ISA, or the best. */
  readonly isa?: string | undefined;
  /** Collect time by kind of step. */
  readonly profile?: boolean | undefined;
  /** false = steps in program order, one parallel step between two barriers; to measure what the delays are worth. */
  readonly delayAware?: boolean | undefined;
}
