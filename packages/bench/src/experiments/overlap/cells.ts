/** What `overlap` measures: variants of the pipeline by number of threads and memory budget. */

import type { ModelConfig } from '@cflow/format';
import type { EngineOptions, OpenModelOptions } from '@cflow/runtime-native';
import { plural } from '#cli-kit/text.js';

/** How weights are read; `resident` is the reference. */
export interface Variant {
  readonly name: string;
  readonly options: Pick<EngineOptions, 'transfers' | 'direct'> & { readonly weights: 'direct' | 'resident' };
}

/** Memory of a cell: a share of the experts, or bytes in total. */
export type Budget =
  | { readonly name: string; readonly share: number }
  | { readonly name: string; readonly memory: number };

export interface Cell {
  /** Unique label. */
  readonly name: string;
  readonly variant: Variant;
  readonly threads: number;
  /** Undefined for the reference. */
  readonly budget: Budget | undefined;
}

export const RESIDENT: Variant = { name: 'resident', options: { weights: 'resident' } };

export const VARIANT_NAMES = ['stall', 'overlap', 'predict'] as const;
export type VariantName = (typeof VARIANT_NAMES)[number];

export const variantOf = (name: VariantName, direct: EngineOptions['direct'] = {}): Variant => ({
  name,
  options: { weights: 'direct', transfers: name, direct },
});

export const shareBudget = (percent: number): Budget => ({ name: `${percent} %`, share: percent / 100 });
export const memoryBudget = (bytes: number): Budget => ({
  name: `${(bytes / 1e6).toFixed(0)} MB`,
  memory: bytes,
});

/** Every variant with every number of threads and budget; the reference once per number of threads. */
export function cellsOf(
  variants: readonly Variant[],
  threadCounts: readonly number[],
  budgets: readonly Budget[],
): Cell[] {
  return threadCounts.flatMap((threads) => [
    { name: `${plural(threads, 'thread')}, resident`, variant: RESIDENT, threads, budget: undefined },
    ...budgets.flatMap((budget) =>
      variants.map((variant) => ({
        name: `${budget.name}, ${plural(threads, 'thread')}, ${variant.name}`,
        variant,
        threads,
        budget,
      })),
    ),
  ]);
}

/** Expert cache slots of a share, at least as many as are in use at the same time. */
export function slotsOf(share: number, { layers, expertDelay }: ModelConfig): number {
  const experts = layers.flatMap((layer) => (layer.experts ? [layer.experts] : []));
  const count = experts.reduce((sum, layer) => sum + layer.count, 0);
  const least = (expertDelay + 1) * Math.max(0, ...experts.map(({ topK }) => topK));
  return Math.min(count, Math.max(least, Math.round(share * count)));
}

/** Options that open the model of a cell. @param memory limit of the process, bytes */
export function openOptions(
  { variant, threads, budget }: Cell,
  config: ModelConfig,
  memory?: number,
): OpenModelOptions {
  const slots = budget && 'share' in budget ? { expertSlots: slotsOf(budget.share, config) } : {};
  const direct =
    variant.options.weights === 'direct' ? { direct: { ...variant.options.direct, ...slots } } : {};
  return {
    engine: 'native',
    threads,
    ...variant.options,
    ...direct,
    ...(memory === undefined ? {} : { memory }),
  };
}

/** The ablation's baseline: small buffered reads, queue depth 1; LRU. */
const PLAIN = { block: 128 * 1024, depth: 1, backend: 'threads', mode: 'buffered', halfLife: 0 } as const;
const RECENCY = { halfLife: 0 };

const step = (
  name: string,
  transfers: NonNullable<EngineOptions['transfers']>,
  direct: EngineOptions['direct'],
): Variant => ({
  name,
  options: { weights: 'direct', transfers, direct },
});

/**
 * PIPO's ablation ladder (§6.4) for experts on disk: each step adds one part of the pipeline.
 * @param tuned block size and queue depth, if not the engine's defaults
 */
export const ladder = (tuned: NonNullable<EngineOptions['direct']>): readonly Variant[] => [
  step('no overlap', 'stall', PLAIN),
  step('+ overlap', 'overlap', PLAIN),
  step('+ transfer suite', 'overlap', { ...tuned, ...RECENCY }),
  step('+ prediction and cache', 'predict', tuned),
];
