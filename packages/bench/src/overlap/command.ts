/** `cflow-bench overlap`. */
import { IO_DEFAULTS, parseBytes } from '@cflow/runtime-native';
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { warnIfBusy } from '../harness/busy.js';
import { type Builder, count, ioOf, print, SHARED, threadCounts } from '../harness/cli-common.js';
import { progress } from '../harness/progress.js';
import type { MeasureContext } from '../harness/quick.js';
import type { Measured } from '../harness/result.js';
import { save } from '../harness/save.js';
import { measuredText } from '../report/text.js';
import { BLOCKS, blocksMeasured, DEPTHS, sweepBlocks } from './blocks.js';
import { ARM_NAMES, armOf, cellsOf, memoryBudget, shareBudget } from './cells.js';
import { ladder, ladderMeasured } from './ladder.js';
import { benchOverlap } from './overlap-bench.js';
import { overlapMeasured } from './overlap-measured.js';

const { memory, prefill, runs, shares, threads, tokens, warmup } = SHARED;

function options(y: Builder) {
  return y
    .positional('model', { ...SHARED.model, describe: '.cflow or .vflow with experts' })
    .option('arms', {
      type: 'string',
      array: true,
      choices: ARM_NAMES,
      default: [...ARM_NAMES],
      describe: 'of the pipeline',
    })
    .option('threads', { ...threads, array: true, describe: 'threads that compute [default: 1, and all]' })
    .option('memory', { ...memory, array: true, describe: `${memory.describe}, instead of --shares` })
    .options({
      shares,
      runs,
      tokens,
      warmup: { ...warmup, default: 64 },
      prefill: { ...prefill, default: 16 },
    })
    .option('io-block', SHARED['io-block'])
    .option('save', SHARED.save)
    .option('io-depth', SHARED['io-depth'])
    .option('ladder', {
      type: 'boolean',
      default: false,
      describe: 'what each part adds, at the first share',
    })
    .option('sweep', { type: 'boolean', default: false, describe: 'sizes of reads and how many at once' });
}

type Options = ReturnType<typeof options> extends Argv<infer Given> ? Given : never;

export const command: CommandModule<object, Options> = {
  command: 'overlap <model>',
  describe: 'experts on disk: stalling, overlapping and predicting, against the model of the report',
  builder: options,
  handler: run,
};

async function run(args: ArgumentsCamelCase<Options>): Promise<void> {
  await warnIfBusy();
  const line = progress(args.json === true);
  const work = args.sweep ? measureBlocks : args.ladder ? measureLadder : measureArms;
  const measured = await work(args, line.step).finally(line.stop);
  await save('overlap', args, () => measured);
  await print(args, measured, ({ tables, metrics }) =>
    measuredText({ metrics: metrics.filter(({ name }) => / (by stall|limit)$|hidden$/.test(name)), tables }),
  );
}

type Work = (args: Options, onStep: (text: string) => void) => Promise<Measured>;

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

const measureArms: Work = async (args, onStep) => {
  const io = ioOf(args);
  const { block, depth } = io;
  const arms = args.arms.map((name) => armOf(name, { block, depth }));
  const cells = cellsOf(arms, await threadCounts(args.threads), budgetsOf(args));
  return overlapMeasured(await benchOverlap({ ...lengthsOf(args), io, cells, onStep }));
};

const measureLadder: Work = async (args, onStep) => {
  const io = ioOf(args);
  const { block, depth } = io;
  const most = (await threadCounts(args.threads)).slice(-1);
  const cells = cellsOf(ladder({ block, depth }), most, budgetsOf(args).slice(0, 1));
  return ladderMeasured(await benchOverlap({ ...lengthsOf(args), io, cells, onStep }));
};

const measureBlocks: Work = async (args, onStep) => {
  const io = ioOf(args);
  const sweep = { file: args.model, blocks: BLOCKS, depths: DEPTHS, milliseconds: 200, io, onStep };
  return blocksMeasured(await sweepBlocks({ ...sweep, runs: count('runs', args.runs, 1000) }), io);
};

const QUICK = { runs: 3, tokens: 64, warmup: 64, prompt: 8 };

/** For the scorecard: one budget, all threads, some seconds. */
export async function measureQuick({
  model,
  threads,
}: Pick<MeasureContext, 'model' | 'threads'>): Promise<Measured> {
  const cells = cellsOf([armOf('stall'), armOf('overlap')], [threads], [shareBudget(35)]);
  return overlapMeasured(await benchOverlap({ file: model, io: IO_DEFAULTS, cells, ...QUICK }));
}
