/** What the native engine is opened with: defaults and checks. */
import { accessSync, constants } from 'node:fs';
import { tmpdir } from 'node:os';
import { DTYPES, type Dtype, TRANSFER_MODES } from '@cflow/format';
import { type Check, type Checks, checkOptions, choice, flag, real, text, whole } from '@cflow/format/node';
import type { EngineOptions } from '../engine-options.js';
import { threadBudget } from '../threads.js';
import type { NativeEngineOptions } from './addon.js';
import { type Arithmetic, readsInt8 } from './lower.js';

export const MAX_THREADS = 1024;
/** Tokens of one batch of a prefill: enough that reading weights no longer counts. */
const MAX_BATCH = 512;

const object: Check = {
  holds: (value) => typeof value === 'object' && value !== null,
  expected: 'an object',
};

const inBlockRange = (bytes: number) => bytes >= BLOCK && bytes <= MAX_BLOCK;

export const ENGINE_CHECKS: Checks<EngineOptions> = {
  transfers: choice(TRANSFER_MODES),
  threads: whole(1, MAX_THREADS),
  weights: choice(['auto', 'mapped', 'resident', 'direct']),
  arithmetic: choice(['q8', 'f32']),
  cache: choice(['f16', 'f32']),
  cacheMemory: whole(1, Number.MAX_SAFE_INTEGER),
  spillDirectory: text,
  maxBatch: whole(1, 65_536),
  isa: text,
  profile: flag,
  delayAware: flag,
  memory: whole(1, Number.MAX_SAFE_INTEGER),
  context: whole(1, 2 ** 32),
  direct: object,
  recordRoutings: flag,
};

const BLOCK = 4096;
const MAX_BLOCK = 2 ** 30;

export const DIRECT_CHECKS: Checks<NonNullable<EngineOptions['direct']>> = {
  expertSlots: whole(1, 2 ** 30),
  streamSlots: whole(1, 2 ** 30),
  block: {
    holds: (value) => Number.isInteger(value) && Number(value) % BLOCK === 0 && inBlockRange(Number(value)),
    expected: `a multiple of ${BLOCK} from ${BLOCK} to ${MAX_BLOCK}`,
  },
  depth: whole(1, 256),
  backend: choice(['auto', 'uring', 'threads']),
  mode: choice(['auto', 'buffered']),
  halfLife: real(0, Number.MAX_VALUE),
};

/** All but where weights are. */
export interface ResolvedOptions extends Omit<NativeEngineOptions, 'weights' | 'direct' | 'spill'> {
  /** Where the number of threads came from, for people. */
  readonly threadsReason: string;
  readonly delayAware: boolean;
  /** Memory for the keys and values of a session, bytes; 0 = as much as they need. */
  readonly cacheMemory: number;
  /** Where the rest goes. */
  readonly spillDirectory: string;
}

/**
 * The options of the engine for a file of `dtype` tiles.
 * @throws CflowError USAGE for an option that is none
 */
export async function resolveOptions(dtype: Dtype, options: EngineOptions): Promise<ResolvedOptions> {
  checkOptions(options, ENGINE_CHECKS);
  if (options.direct) checkOptions(options.direct, DIRECT_CHECKS);
  const wanted: Arithmetic = options.arithmetic ?? (DTYPES[dtype].scaleBytes > 0 ? 'q8' : 'f32');
  const arithmetic = readsInt8(dtype, wanted) ? 'q8' : 'f32';
  const { threads, reason } = options.threads === undefined ? await threadBudget() : asAsked(options.threads);
  return {
    arithmetic,
    cache: options.cache ?? (arithmetic === 'q8' ? 'f16' : 'f32'),
    cacheMemory: options.cacheMemory ?? 0,
    spillDirectory: options.spillDirectory ?? spillDirectory(),
    threads: Math.min(threads, MAX_THREADS),
    shareShort: options.threads !== undefined,
    maxBatch: options.maxBatch ?? MAX_BATCH,
    isa: options.isa ?? process.env.CFLOW_ISA ?? '',
    profile: options.profile ?? false,
    recordRoutings: options.recordRoutings ?? false,
    threadsReason: reason,
    delayAware: options.delayAware ?? true,
  };
}

const asAsked = (threads: number) => ({ threads, reason: 'as asked' });

/** For large files that outlive no process; /tmp is often a tmpfs, which is memory. */
const ON_DISK = '/var/tmp';

/** TMPDIR where it is set, else the system's directory for large files, else that for any. */
export function spillDirectory(): string {
  if (process.env.TMPDIR) return process.env.TMPDIR;
  try {
    accessSync(ON_DISK, constants.W_OK | constants.X_OK);
    return ON_DISK;
  } catch {
    return tmpdir();
  }
}
