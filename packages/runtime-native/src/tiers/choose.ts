/** Decides where the weights of a file go: measures what `configureTiers` needs, then calls it. */

import { totalmem } from 'node:os';
import { buildPlan, CflowError, type ModelFile, type TransferMode } from '@cflow/format';
import { memoryText } from '#cli-kit/bytes.js';
import type { EngineOptions } from '../engine-options.js';
import type { Addon, IoChoice, NativeDirectOptions, NativeEngineOptions } from '../native/addon.js';
import { lowerPlan } from '../native/lower.js';
import type { ResolvedOptions } from '../native/options.js';
import { IN_MEMORY, type Placement } from '../native/tiers.js';
import { type Bandwidths, configureTiers, type TierPlan } from './configure.js';
import { bandwidths, type MeasuredFile } from './devices.js';
import { cachedBytes, type ModelSizes, metadataBytes, modelSizes } from './estimate.js';
import { type Prediction, predict } from './predict.js';
import { countProcess } from './process.js';

/** Where weights are, why, and the predicted speed. */
export interface TierChoice {
  readonly weights: NativeEngineOptions['weights'];
  /** As text. */
  readonly reason: string;
  /** Bytes that the process may use, and the source of the number. */
  readonly budget?: number;
  readonly budgetReason?: string;
  readonly plan?: TierPlan;
  readonly io?: IoChoice;
  readonly bandwidths?: Bandwidths;
  readonly prediction?: Prediction;
}

/** Options of the engine besides `ResolvedOptions`. */
export interface ChosenTiers {
  readonly choice: TierChoice;
  readonly transfers: TransferMode;
  readonly placement: Placement;
  readonly maxBatch: number;
  /** Bytes of a session's KV cache in memory; 0 = all of it. */
  readonly cacheMemory: number;
  readonly direct?: NativeDirectOptions;
}

/** Four reads of 1 MiB in flight keep a disk busy; `cflow-bench overlap --sweep` sweeps both. */
export const IO_DEFAULTS: IoChoice = { block: 2 ** 20, depth: 4, backend: 'auto', mode: 'auto' };
/** Tokens; `cflow-bench cache` compares it with others, and with LRU, on recorded routings. */
export const HALF_LIFE = 64;
/** Positions of KV cache in the budget by default. */
const CONTEXT = 2048;
/** Share of the available memory that the default budget takes. */
const DEFAULT_SHARE = 0.8;
/** Bytes that the process was last counted as. */
let processBytes = 0;

/**
 * @throws CflowError MEMORY if the budget is too small for the model; it names the smallest that is enough
 */
export async function chooseTiers(
  addon: Addon,
  opened: MeasuredFile,
  file: ModelFile,
  resolved: ResolvedOptions,
  options: EngineOptions,
): Promise<ChosenTiers> {
  const { weights = 'auto' } = options;
  checkContext(options.context, file.config.contextLength);
  if (weights === 'mapped' || weights === 'resident') {
    if (options.memory !== undefined) throw unbounded(weights, options.memory);
    return inMemory(weights, 'as asked', resolved);
  }
  const { budget, budgetReason } = memoryBudget(addon, options.memory);
  const { sizes, liveStreams } = needs(file, resolved, options.context);
  const counted = countProcess({
    rss: process.memoryUsage.rss(),
    metadataBytes: metadataBytes(file),
    before: processBytes,
  });
  processBytes = counted.bytes;
  const { expertSlots, streamSlots } = options.direct ?? {};
  const wishes = {
    budget,
    used: counted.bytes,
    margin: counted.margin,
    maxBatch: resolved.maxBatch,
    liveStreams,
    expertSlots,
    streamSlots,
  };
  const tiers = configureTiers(sizes, { ...wishes, transfers: options.transfers });
  const { cacheMemory = resolved.cacheMemory } = tiers;
  const common = { reason: tiers.rule, budget, budgetReason, plan: tiers };
  if (tiers.weights === 'resident' && weights === 'auto')
    return inMemory('resident', common, { maxBatch: resolved.maxBatch, cacheMemory });
  if (tiers.weights === 'resident') throw nothingToFetch(budget);
  const io: IoChoice = { ...IO_DEFAULTS, ...options.direct };
  const rates = await bandwidths(addon, opened, {
    threads: resolved.threads,
    io,
    room: budget - counted.bytes,
  });
  const prediction = predict(sizes, tiers, rates);
  return {
    choice: { weights: 'direct', ...common, io, bandwidths: rates, prediction },
    transfers: tiers.transfers,
    placement: tiers.placement,
    maxBatch: tiers.maxBatch,
    cacheMemory,
    direct: {
      block: io.block,
      depth: io.depth,
      backend: io.backend,
      mode: io.mode,
      expertSlots: tiers.expertSlots,
      streamSlots: tiers.streamSlots,
      halfLife: options.direct?.halfLife ?? HALF_LIFE,
      readAhead: tiers.transfers !== 'stall',
    },
  };
}

/** @throws CflowError LIMIT_EXCEEDED for more positions than the model has */
function checkContext(context: number | undefined, limit: number): void {
  if (context === undefined || context <= limit) return;
  throw new CflowError('LIMIT_EXCEEDED', `${context} positions, the model has ${limit}`, {
    field: 'context',
    value: context,
    limit,
    remedy: `ask for ${limit} at most`,
  });
}

/** Memory that a model needs, and how many of its streams are in use at once. */
function needs(
  file: ModelFile,
  resolved: ResolvedOptions,
  context = Math.min(CONTEXT, file.config.contextLength),
): { sizes: ModelSizes; liveStreams: number } {
  const plan = buildPlan(file.config, { transfers: 'none' });
  const { maxBatch, cache } = resolved;
  const sizes = withinMemory(
    modelSizes(plan, file, { context, maxBatch, valueBytes: cachedBytes(cache) }),
    resolved,
  );
  const every: Placement = { streams: new Set(sizes.streams.map(({ name }) => name)), experts: false };
  return { sizes, liveStreams: lowerPlan(plan, file, { ...resolved, placement: every }).liveStreams };
}

function unbounded(weights: string, memory: number): CflowError {
  return new CflowError('USAGE', `cannot limit ${weights} weights`, {
    field: 'memory',
    value: memory,
    remedy: `leave out ${weights}: weights that fit stay in memory, the rest is offloaded`,
  });
}

/** Limits the KV cache to `cacheMemory` where one is set. */
function withinMemory(sizes: ModelSizes, { cacheMemory }: ResolvedOptions): ModelSizes {
  const cacheBytes = Math.min(sizes.cacheBytes, cacheMemory || Number.POSITIVE_INFINITY);
  return cacheMemory ? { ...sizes, cacheBytes, leastCacheBytes: cacheBytes, batchCacheBytes: 0 } : sizes;
}

function inMemory(
  weights: 'mapped' | 'resident',
  reason: string | Omit<TierChoice, 'weights'>,
  { maxBatch, cacheMemory }: Pick<ResolvedOptions, 'maxBatch' | 'cacheMemory'>,
): ChosenTiers {
  const choice = typeof reason === 'string' ? { weights, reason } : { weights, ...reason };
  return { choice, transfers: 'none', placement: IN_MEMORY, maxBatch, cacheMemory };
}

function nothingToFetch(budget: number): CflowError {
  return new CflowError('USAGE', `everything fits in ${memoryText(budget)}: nothing to offload`, {
    field: 'weights',
    value: 'direct',
    remedy: 'leave it out, or set a smaller memory',
  });
}

/** The requested budget, or a share of what the system and its cgroup have left plus what the process uses now. */
function memoryBudget(addon: Addon, asked: number | undefined): { budget: number; budgetReason: string } {
  if (asked !== undefined) return { budget: asked, budgetReason: 'as asked' };
  const available = Math.min(addon.availableMemory(), totalmem());
  const budget = Math.floor(DEFAULT_SHARE * available) + process.memoryUsage.rss();
  return { budget, budgetReason: `${100 * DEFAULT_SHARE} % of ${memoryText(available)} available` };
}
