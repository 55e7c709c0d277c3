/** What the native engine is opened with: defaults and checks. */
import { CflowError, DTYPES, type Dtype } from '@cflow/format';
import type { EngineOptions } from '../engine.js';
import { threadBudget } from '../threads.js';
import type { NativeEngineOptions } from './addon.js';
import { type Arithmetic, readsInt8 } from './lower.js';

export const MAX_THREADS = 1024;
/** Tokens of one batch of a prefill: enough that reading weights no longer counts. */
const MAX_BATCH = 512;

export interface ResolvedOptions extends NativeEngineOptions {
  /** Where the number of threads came from, for people. */
  readonly threadsReason: string;
  readonly delayAware: boolean;
}

/**
 * The options of the engine for tiles of `dtype`.
 * @throws CflowError USAGE for a number of threads or tokens that is none
 */
export async function resolveOptions(dtype: Dtype, options: EngineOptions): Promise<ResolvedOptions> {
  const wanted: Arithmetic = options.arithmetic ?? (DTYPES[dtype].scaleBytes > 0 ? 'q8' : 'f32');
  const arithmetic = readsInt8(dtype, wanted) ? 'q8' : 'f32';
  const { threads, reason } = options.threads === undefined ? await threadBudget() : asAsked(options.threads);
  return {
    weights: options.weights ?? 'mapped',
    arithmetic,
    cache: options.cache ?? (arithmetic === 'q8' ? 'f16' : 'f32'),
    threads: whole('threads', threads, MAX_THREADS),
    maxBatch: whole('maxBatch', options.maxBatch ?? MAX_BATCH, 65_536),
    isa: options.isa ?? process.env.CFLOW_ISA ?? '',
    profile: options.profile ?? false,
    threadsReason: reason,
    delayAware: options.delayAware ?? true,
  };
}

const asAsked = (threads: number) => ({ threads, reason: 'as asked' });

function whole(field: string, value: number, limit: number): number {
  if (Number.isInteger(value) && value >= 1 && value <= limit) return value;
  throw new CflowError('USAGE', `${value} is not a whole number from 1 to ${limit}`, { field, value, limit });
}
