/** Shared options, value checks and output of the commands. */

import { CflowError } from '@cflow/format';
import { threadBudget } from '@cflow/runtime-native';
import type { IoChoice } from '@cflow/runtime-native/internal/native/addon.js';
import { IO_DEFAULTS } from '@cflow/runtime-native/internal/tiers/choose.js';
import type yargs from 'yargs';
import { parseBytes } from '#cli-kit/bytes.js';
import { writeOutput } from '#cli-kit/output.js';
import { memoryLimit } from './machine.js';

export type Builder = ReturnType<typeof yargs>;

const PAGE = 4096;
const MOST_BLOCK = 2 ** 30;
const DEFAULT_BLOCK = `${IO_DEFAULTS.block / 2 ** 20}MiB`;

/** Options of several commands; name, type and meaning are the same in each, and in cflow-run. */
export const SHARED = {
  model: { type: 'string', demandOption: true, describe: '.cflow or .vflow' },
  gguf: { type: 'string', describe: 'the same weights for llama.cpp (see synth --format gguf)' },
  texts: { type: 'string', describe: 'text file; <|endoftext|> separates documents' },
  threads: { type: 'number', describe: 'compute threads [default: CPUs allowed]' },
  runs: { type: 'number', default: 3, describe: 'runs of each, interleaved' },
  tokens: { type: 'number', default: 64, describe: 'tokens decoded, timed' },
  prefill: { type: 'number', default: 512, describe: 'tokens of the timed prompt' },
  warmup: { type: 'number', default: 128, describe: 'tokens processed before anything is timed' },
  context: { type: 'number', default: 0, describe: 'context depth of a second timed decode; 0: none' },
  memory: { type: 'string', describe: 'memory limit of the process, e.g. 2GiB or 1500MB' },
  shares: { type: 'number', array: true, default: [15, 35, 70], describe: 'experts in memory, %' },
  layers: { type: 'number', describe: 'number of layers [default: that of the geometry]' },
  seed: { type: 'number', default: 1, describe: 'seed of the random generator' },
  save: { type: 'string', describe: 'write a result file, for compare and report' },
  directory: {
    type: 'string',
    describe: 'directory for temporary files [default: that of the system]',
  },
  'io-block': { type: 'string', default: DEFAULT_BLOCK, describe: 'read size, e.g. 1MiB' },
  'io-depth': { type: 'number', default: IO_DEFAULTS.depth, describe: 'queue depth: concurrent reads' },
} as const;

/** @throws CflowError USAGE unless it is a whole number from `least` to `most` */
export function count(field: string, value: number, most: number, least = 1): number {
  if (Number.isInteger(value) && value >= least && value <= most) return value;
  throw new CflowError('USAGE', `--${field} is ${value}, expected ${least} to ${most}`, { field, value });
}

/** @throws CflowError USAGE unless it is a whole number of 32 bits */
export const seedOf = (value: number) => count('seed', value, 2 ** 32 - 1, 0);

/** `--threads`, or all CPUs allowed. @throws CflowError USAGE */
export async function threadsOf(given: number | undefined): Promise<number> {
  return count('threads', given ?? (await threadBudget()).threads, 1024);
}

/** The distinct values of `--threads`; or 1, and all CPUs allowed. @throws CflowError USAGE */
export async function threadCounts(given: readonly number[] | undefined): Promise<number[]> {
  const all = await Promise.all((given ?? [1, undefined]).map(threadsOf));
  return [...new Set(all)];
}

/** Read size, such as `64KiB`. @throws CflowError USAGE unless it is a multiple of 4 KiB, 1 GiB at most */
export function blockOf(field: string, text: string): number {
  const bytes = parseBytes(text, `--${field}`);
  if (bytes % PAGE === 0 && bytes <= MOST_BLOCK) return bytes;
  throw new CflowError('USAGE', `--${field} is ${text}, expected a multiple of 4KiB, 1GiB at most`, {
    field,
    value: text,
  });
}

/** Reader options of the engine with that block size and queue depth. @throws CflowError USAGE; MEMORY above half of the memory */
export function ioOf(args: { readonly 'io-block': string; readonly 'io-depth': number }): IoChoice {
  const block = blockOf('io-block', args['io-block']);
  const depth = count('io-depth', args['io-depth'], 256);
  const limit = Math.floor(memoryLimit() / 2);
  if (block * depth <= limit) return { ...IO_DEFAULTS, block, depth };
  throw new CflowError('MEMORY', `--io-block times --io-depth is ${block * depth} bytes, limit ${limit}`, {
    field: 'io-depth',
    value: block * depth,
    limit,
    remedy: 'use a smaller block or queue depth; reads may use half of the memory',
  });
}

export async function print<T>(
  args: Record<string, unknown>,
  result: T,
  describe: (result: T) => string,
): Promise<void> {
  await writeOutput(`${args.json ? JSON.stringify(result) : describe(result)}\n`);
}

/** Block sizes in the names of metrics, by which result files are compared. */
export const kib = (bytes: number) => `${bytes / 1024} KiB`;
