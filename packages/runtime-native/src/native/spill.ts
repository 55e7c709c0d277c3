/** Keys and values beyond their memory: what cannot work is refused when a model is opened, not at the first spill. */
import { mkdtemp, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { CflowError, type ExecutionPlan } from '@cflow/format';
import { errno } from '@cflow/format/node';
import type { EngineOptions } from '../engine-options.js';
import { cachedBytes, fewestCacheBytes } from '../tiers/estimate.js';
import type { ResolvedOptions } from './options.js';

/**
 * @throws CflowError MEMORY for a `cacheMemory` in which not even one token can pass, or not the `context` that was
 * asked for
 */
export function checkCacheMemory(
  plan: ExecutionPlan,
  cache: ResolvedOptions['cache'],
  { cacheMemory, context = 1 }: EngineOptions,
): void {
  const limit = fewestCacheBytes(plan, { context, valueBytes: cachedBytes(cache) });
  if (cacheMemory === undefined || cacheMemory >= limit) return;
  const whose = context === 1 ? 'one token' : `${context} positions`;
  throw new CflowError('MEMORY', `${cacheMemory} bytes hold no keys and values of ${whose}`, {
    field: 'cacheMemory',
    value: cacheMemory,
    limit,
    remedy: `allow ${limit} bytes or more${context === 1 ? '' : ', or use a shorter context'}`,
  });
}

/** @throws CflowError WRITE_FAILED for a `spillDirectory` in which no file can be made */
export async function checkSpillDirectory(directory: string): Promise<void> {
  try {
    await rmdir(await mkdtemp(join(directory, '.cflow-spill-')));
  } catch (cause) {
    throw new CflowError('WRITE_FAILED', `${directory} takes no file for keys and values: ${errno(cause)}`, {
      field: 'spillDirectory',
      value: directory,
      remedy: 'name a directory that is there and can be written, or allow more memory for keys and values',
      cause,
    });
  }
}
