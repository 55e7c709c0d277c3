/** `cflow-bench overlap`: experts on disk, by variant of the pipeline; `--ladder` and `--sweep` are separate experiments. */

import { IO_DEFAULTS } from '@cflow/runtime-native/internal/tiers/choose.js';
import { parseBytes } from '#cli-kit/bytes.js';
import { experiment, type QuickContext, type Run } from '../../runner/experiment.js';
import { count, ioOf, SHARED, threadCounts } from '../../runner/options.js';
import type { Measured } from '../../runner/result.js';
import { benchOverlap, type OverlapBenchOptions } from './bench.js';
import { BLOCKS, blocksMeasured, DEPTHS, sweepBlocks } from './blocks.js';
import { cellsOf, ladder, memoryBudget, shareBudget, VARIANT_NAMES, variantOf } from './cells.js';
import { ladderMeasured, overlapMeasured } from './measured.js';

const { memory, prefill, runs, shares, threads, tokens, warmup } = SHARED;

export const overlap = experiment({
  name: 'overlap',
  positional: '<model>',
  describe: 'experts on disk: stall, overlap and predict, against the model of the report',
  options: (y) =>
    y
      .positional('model', { ...SHARED.model, describe: '.cflow or .vflow with experts' })
      .option('variants', {
        type: 'string',
        array: true,
        choices: VARIANT_NAMES,
        default: [...VARIANT_NAMES],
        describe: 'how experts are read: wait for each read, overlap reads, or also predict them',
      })
      .option('threads', { ...threads, array: true, describe: 'compute threads [default: 1, and all]' })
      .option('memory', { ...memory, array: true, describe: `${memory.describe}, instead of --shares` })
      .options({
        shares,
        runs,
        tokens,
        warmup: { ...warmup, default: 64 },
        prefill: { ...prefill, default: 16 },
      })
      .option('io-block', SHARED['io-block'])
      .option('io-depth', SHARED['io-depth'])
      .option('ladder', {
        type: 'boolean',
        default: false,
        describe: 'what each part of the pipeline adds, at the first share',
      })
      .option('sweep', { type: 'boolean', default: false, describe: 'read sizes and queue depths' }),
  timed: true,
  measure: (args, run) =>
    (args.sweep ? measureBlocks : args.ladder ? measureLadder : measureVariants)(args, run),
  quick: async (context, run) => overlapMeasured(await benchOverlap(quickOptions(context), run)),
  results: (measured) => measured,
  shown: / (by stall|limit)$|hidden$/,
});

/** Stall and overlap with a small expert cache: what the scorecard needs. */
export function quickOptions({
  model,
  threads,
}: Pick<QuickContext, 'model' | 'threads'>): OverlapBenchOptions {
  const cells = cellsOf([variantOf('stall'), variantOf('overlap')], [threads], [shareBudget(35)]);
  return { file: model, io: IO_DEFAULTS, cells, runs: 3, tokens: 64, warmup: 64, prompt: 8 };
}

interface Options {
  readonly model: string;
  readonly variants: readonly (typeof VARIANT_NAMES)[number][];
  readonly threads: readonly number[] | undefined;
  readonly memory: readonly string[] | undefined;
  readonly shares: readonly number[];
  readonly runs: number;
  readonly tokens: number;
  readonly warmup: number;
  readonly prefill: number;
  readonly 'io-block': string;
  readonly 'io-depth': number;
}

type Work = (args: Options, run: Run) => Promise<Measured>;

const lengthsOf = (args: Options) => ({
  file: args.model,
  runs: count('runs', args.runs, 1000),
  tokens: count('tokens', args.tokens, 100_000),
  warmup: count('warmup', args.warmup, 100_000, 0),
  prompt: count('prefill', args.prefill, 100_000),
});

function budgetsOf({ shares, memory }: Options) {
  const bytes = memory?.map((each) => memoryBudget(parseBytes(each, '--memory')));
  return bytes ?? shares.map((percent) => shareBudget(count('shares', percent, 100)));
}

const measureVariants: Work = async (args, run) => {
  const io = ioOf(args);
  const { block, depth } = io;
  const variants = args.variants.map((name) => variantOf(name, { block, depth }));
  const cells = cellsOf(variants, await threadCounts(args.threads), budgetsOf(args));
  return overlapMeasured(await benchOverlap({ ...lengthsOf(args), io, cells }, run));
};

const measureLadder: Work = async (args, run) => {
  const io = ioOf(args);
  const { block, depth } = io;
  const most = (await threadCounts(args.threads)).slice(-1);
  const cells = cellsOf(ladder({ block, depth }), most, budgetsOf(args).slice(0, 1));
  return ladderMeasured(await benchOverlap({ ...lengthsOf(args), io, cells }, run));
};

const measureBlocks: Work = async (args, run) => {
  const io = ioOf(args);
  const sweep = { file: args.model, blocks: BLOCKS, depths: DEPTHS, milliseconds: 200, io };
  return blocksMeasured(await sweepBlocks({ ...sweep, runs: count('runs', args.runs, 1000) }, run), io);
};
