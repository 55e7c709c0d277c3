/** Where the weights of a file go: measures what the choice needs, and makes it. */
import { totalmem } from 'node:os';
import { buildPlan, CflowError, type ModelFile, type TransferMode } from '@cflow/format';
import type { EngineOptions } from '../engine.js';
import type { Addon, IoChoice, NativeDirectOptions, NativeEngineOptions } from '../native/addon.js';
import { lowerPlan } from '../native/lower.js';
import type { ResolvedOptions } from '../native/options.js';
import { IN_MEMORY, type Placement } from '../native/tiers.js';
import { type Bandwidths, configureTiers, size, type TierPlan } from './configure.js';
import { bandwidths, type MeasuredFile } from './devices.js';
import { cachedBytes, type ModelSizes, modelSizes } from './estimate.js';
import { type Prediction, predict } from './predict.js';

/** Where weights are, why, and what that should reach. */
export interface TierChoice {
  readonly weights: NativeEngineOptions['weights'];
  /** For people. */
  readonly reason: string;
  /** Bytes that the process may use, and where the number came from. */
  readonly budget?: number;
  readonly budgetReason?: string;
  readonly plan?: TierPlan;
  readonly io?: IoChoice;
  readonly bandwidths?: Bandwidths;
  readonly prediction?: Prediction;
}

/** What the engine is opened with besides `ResolvedOptions`. */
export interface ChosenTiers {
  readonly choice: TierChoice;
  readonly transfers: TransferMode;
  readonly placement: Placement;
  readonly maxBatch: number;
  /** Memory for the keys and values of a session; 0 = as much as they need. */
  readonly cacheMemory: number;
  readonly direct?: NativeDirectOptions;
}

/** One MiB in flight four times keeps a disk busy; `cflow-bench overlap --sweep` sweeps both. */
export const IO_DEFAULTS: IoChoice = { block: 2 ** 20, depth: 4, backend: 'auto', mode: 'auto' };
/** Tokens; `cflow-bench cache` compares it with others, and with LRU, on recorded routings. */
export const HALF_LIFE = 64;
/** Positions that a budget keeps room for unless told. */
const CONTEXT = 2048;
/** Of what the system has left, what is ours without being asked. */
const DEFAULT_SHARE = 0.8;
/** The process without a model: measured, but not less. */
const LEAST_PROCESS = 80e6;
/** In these steps: a process grows a little whatever it does. The smallest budget that is named has room for one more. */
const PROCESS_STEP = 2 ** 24;
let processBytes = 0;

/** What a process of `rss` bytes is counted as, after it was counted as `before`. */
export function countedProcess(rss: number, before: number): number {
  if (rss <= before && rss > before - 2 * PROCESS_STEP) return before;
  return Math.max(LEAST_PROCESS, PROCESS_STEP * Math.ceil((rss + PROCESS_STEP / 2) / PROCESS_STEP));
}

/**
 * @throws CflowError MEMORY if the budget is too small for the model; it names the smallest that is not
 */
export async function chooseTiers(
  addon: Addon,
  opened: MeasuredFile,
  file: ModelFile,
  resolved: ResolvedOptions,
  options: EngineOptions,
): Promise<ChosenTiers> {
  const { weights = 'auto' } = options;
  if (weights === 'mapped' || weights === 'resident') {
    if (options.memory !== undefined) throw unbounded(weights, options.memory);
    return inMemory(weights, 'as asked', resolved);
  }
  const { budget, budgetReason } = memoryBudget(addon, options.memory);
  const { sizes, liveStreams } = needs(file, resolved, options.context);
  processBytes = countedProcess(process.memoryUsage.rss(), processBytes);
  const { expertSlots, streamSlots } = options.direct ?? {};
  const wishes = {
    budget,
    used: processBytes,
    margin: PROCESS_STEP,
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
    room: budget - processBytes,
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

/** What a model needs of memory, and how many of its streams are in use at once. */
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
  return new CflowError('USAGE', `does not bound weights that are ${weights}`, {
    field: 'memory',
    value: memory,
    remedy: `leave out ${weights}: what fits the memory is read into it, and the rest is fetched`,
  });
}

/** Keys and values that were given a memory take no more. */
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
  return new CflowError('USAGE', `everything fits the memory of ${size(budget)}: there is nothing to fetch`, {
    field: 'weights',
    value: 'direct',
    remedy: 'leave it out, or set a smaller memory',
  });
}

/** What was asked for, or most of what the system and its cgroup have left, with what the process uses already. */
function memoryBudget(addon: Addon, asked: number | undefined): { budget: number; budgetReason: string } {
  if (asked !== undefined) return { budget: asked, budgetReason: 'as asked' };
  const available = Math.min(addon.availableMemory(), totalmem());
  const budget = Math.floor(DEFAULT_SHARE * available) + process.memoryUsage.rss();
  return { budget, budgetReason: `${100 * DEFAULT_SHARE} % of ${size(available)} available` };
}
