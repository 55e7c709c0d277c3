/** What the native engine is opened with: defaults and checks. */
import { totalmem } from 'node:os';
import { DTYPES, type Dtype, type TransferMode } from '@cflow/format';
import { type Checks, checkOptions, choice, flag, text, whole } from '../checks.js';
import type { EngineOptions } from '../engine.js';
import { threadBudget } from '../threads.js';
import type { NativeEngineOptions } from './addon.js';
import { type Arithmetic, readsInt8 } from './lower.js';

export const MAX_THREADS = 1024;
/** Tokens of one batch of a prefill: enough that reading weights no longer counts. */
const MAX_BATCH = 512;

export const ENGINE_CHECKS: Checks<EngineOptions> = {
  transfers: choice(['none', 'stall', 'overlap'] satisfies TransferMode[]),
  threads: whole(1, MAX_THREADS),
  weights: choice(['auto', 'mapped', 'resident']),
  arithmetic: choice(['q8', 'f32']),
  cache: choice(['f16', 'f32']),
  maxBatch: whole(1, 65_536),
  isa: text,
  profile: flag,
  delayAware: flag,
};

export interface ResolvedOptions extends NativeEngineOptions {
  /** Where the number of threads came from, for people. */
  readonly threadsReason: string;
  /** Why weights are mapped or resident, for people. */
  readonly weightsReason: string;
  readonly delayAware: boolean;
}

/** What is opened, and where. */
export interface Place {
  /** Of the tiles. */
  readonly dtype: Dtype;
  readonly fileBytes: number;
  /** Memory that can still be allocated. */
  readonly availableBytes: number;
}

/**
 * The options of the engine for a file.
 * @throws CflowError USAGE for an option that is none
 */
export async function resolveOptions(place: Place, options: EngineOptions): Promise<ResolvedOptions> {
  checkOptions(options, ENGINE_CHECKS);
  const { dtype } = place;
  const wanted: Arithmetic = options.arithmetic ?? (DTYPES[dtype].scaleBytes > 0 ? 'q8' : 'f32');
  const arithmetic = readsInt8(dtype, wanted) ? 'q8' : 'f32';
  const { threads, reason } = options.threads === undefined ? await threadBudget() : asAsked(options.threads);
  return {
    ...chooseWeights(place, options.weights),
    arithmetic,
    cache: options.cache ?? (arithmetic === 'q8' ? 'f16' : 'f32'),
    threads: Math.min(threads, MAX_THREADS),
    maxBatch: options.maxBatch ?? MAX_BATCH,
    isa: options.isa ?? process.env.CFLOW_ISA ?? '',
    profile: options.profile ?? false,
    threadsReason: reason,
    delayAware: options.delayAware ?? true,
  };
}

/** Resident weights decode faster; a copy that takes more than half of what is left could push out what others need. */
export function chooseWeights(
  { fileBytes, availableBytes }: Omit<Place, 'dtype'>,
  wanted: EngineOptions['weights'] = 'auto',
): Pick<ResolvedOptions, 'weights' | 'weightsReason'> {
  if (wanted !== 'auto') return { weights: wanted, weightsReason: 'as asked' };
  const available = Math.min(availableBytes, totalmem());
  const fits = fileBytes <= available / 2;
  const reason = `${size(fileBytes)} are ${fits ? 'at most' : 'more than'} half of ${size(available)} available`;
  return { weights: fits ? 'resident' : 'mapped', weightsReason: reason };
}

const size = (bytes: number) =>
  bytes < 1e9 ? `${(bytes / 1e6).toFixed(2)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;

const asAsked = (threads: number) => ({ threads, reason: 'as asked' });
