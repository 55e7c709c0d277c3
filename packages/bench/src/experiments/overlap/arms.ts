/** What `overlap` measures: arms of the pipeline, at numbers of threads and memory budgets. */
import type { ModelConfig } from '@cflow/format';
import type { EngineOptions, OpenModelOptions } from '@cflow/runtime-native';
import { threadsText } from '../../runner/options.js';

/** How weights come in; `resident` is the reference, for which nothing does. */
export interface Arm {
  readonly name: string;
  readonly options: Pick<EngineOptions, 'transfers' | 'direct'> & { readonly weights: 'direct' | 'resident' };
}

/** Memory of a cell: a share of the experts, or bytes for everything. */
export type Budget =
  | { readonly name: string; readonly share: number }
  | { readonly name: string; readonly memory: number };

export interface Cell {
  /** Unique, for people. */
  readonly name: string;
  readonly arm: Arm;
  readonly threads: number;
  /** Undefined for the reference. */
  readonly budget: Budget | undefined;
}

export const RESIDENT: Arm = { name: 'resident', options: { weights: 'resident' } };

export const ARM_NAMES = ['stall', 'overlap', 'predict'] as const;
export type ArmName = (typeof ARM_NAMES)[number];

export const armOf = (name: ArmName, direct: EngineOptions['direct'] = {}): Arm => ({
  name,
  options: { weights: 'direct', transfers: name, direct },
});

export const shareBudget = (percent: number): Budget => ({ name: `${percent} %`, share: percent / 100 });
export const memoryBudget = (bytes: number): Budget => ({
  name: `${(bytes / 1e6).toFixed(0)} MB`,
  memory: bytes,
});

/** Every arm at every number of threads and budget, the reference once for each number of threads. */
export function cellsOf(
  arms: readonly Arm[],
  threadCounts: readonly number[],
  budgets: readonly Budget[],
): Cell[] {
  return threadCounts.flatMap((threads) => [
    { name: `${threadsText(threads)}, resident`, arm: RESIDENT, threads, budget: undefined },
    ...budgets.flatMap((budget) =>
      arms.map((arm) => ({
        name: `${budget.name}, ${threadsText(threads)}, ${arm.name}`,
        arm,
        threads,
        budget,
      })),
    ),
  ]);
}

/** Experts of a share, at least as many as are in use at the same time. */
export function slotsOf(share: number, { layers, expertDelay }: ModelConfig): number {
  const experts = layers.flatMap((layer) => (layer.experts ? [layer.experts] : []));
  const count = experts.reduce((sum, layer) => sum + layer.count, 0);
  const least = (expertDelay + 1) * Math.max(0, ...experts.map(({ topK }) => topK));
  return Math.min(count, Math.max(least, Math.round(share * count)));
}

/** What the model of a cell is opened with. @param memory bytes that the process may use */
export function openOptions(
  { arm, threads, budget }: Cell,
  config: ModelConfig,
  memory?: number,
): OpenModelOptions {
  const slots = budget && 'share' in budget ? { expertSlots: slotsOf(budget.share, config) } : {};
  const direct = arm.options.weights === 'direct' ? { direct: { ...arm.options.direct, ...slots } } : {};
  return {
    engine: 'native',
    threads,
    ...arm.options,
    ...direct,
    ...(memory === undefined ? {} : { memory }),
  };
}

/** What reads were before: small, one at a time, through the page cache; replacement by recency. */
const PLAIN = { block: 128 * 1024, depth: 1, backend: 'threads', mode: 'buffered', halfLife: 0 } as const;
const RECENCY = { halfLife: 0 };

const rung = (
  name: string,
  transfers: NonNullable<EngineOptions['transfers']>,
  direct: EngineOptions['direct'],
): Arm => ({
  name,
  options: { weights: 'direct', transfers, direct },
});

/**
 * PIPO's ablation ladder (§6.4) for experts on disk: each rung adds one part of the pipeline to those before it.
 * @param tuned block and depth, where they are not the engine's own
 */
export const ladder = (tuned: NonNullable<EngineOptions['direct']>): readonly Arm[] => [
  rung('no overlap', 'stall', PLAIN),
  rung('+ overlap', 'overlap', PLAIN),
  rung('+ transfer suite', 'overlap', { ...tuned, ...RECENCY }),
  rung('+ prediction and cache', 'predict', tuned),
];
