/** The KV cache on disk: what cannot work is rejected when the model is opened, not at the first spill. */

import { mkdtemp, rmdir } from 'node:fs/promises';
import { join } from 'node:path';
import { CflowError, type ExecutionPlan } from '@cflow/format';
import { errno } from '@cflow/format/node';
import { memoryText } from '#cli-kit/bytes.js';
import type { EngineOptions } from '../engine-options.js';
import { cachedBytes, fewestCacheBytes } from '../tiers/estimate.js';
import type { ResolvedOptions } from './options.js';

/** @throws CflowError MEMORY for a `cacheMemory` that is too small for one token, or for the requested `context` */
export function checkCacheMemory(
  plan: ExecutionPlan,
  cache: ResolvedOptions['cache'],
  { cacheMemory, context = 1 }: EngineOptions,
): void {
  const limit = fewestCacheBytes(plan, { context, valueBytes: cachedBytes(cache) });
  if (cacheMemory === undefined || cacheMemory >= limit) return;
  const whose = context === 1 ? 'one token' : `${context} positions`;
  throw new CflowError('MEMORY', `${memoryText(cacheMemory)} cannot hold the KV cache of ${whose}`, {
    field: 'cacheMemory',
    value: cacheMemory,
    limit,
    remedy: `allow ${limit} bytes or more${context === 1 ? '' : ', or use a shorter context'}`,
  });
}

/** @throws CflowError WRITE_FAILED for a `spillDirectory` that is not writable */
export async function checkSpillDirectory(directory: string): Promise<void> {
  try {
    await rmdir(await mkdtemp(join(directory, '.cflow-spill-')));
  } catch (cause) {
    throw new CflowError(
      'WRITE_FAILED',
      `cannot create a file for the KV cache in ${directory}: ${errno(cause)}`,
      {
        field: 'spillDirectory',
        value: directory,
        remedy: 'name a writable directory, or allow more memory for the KV cache',
        cause,
      },
    );
  }
}
