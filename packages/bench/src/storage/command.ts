/** `cflow-bench storage`. */
import { tmpdir } from 'node:os';
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { type Builder, blockOf, count, ioOf, print, SHARED } from '../harness/cli-common.js';
import { progress } from '../harness/progress.js';
import type { MeasureContext } from '../harness/quick.js';
import type { Measured } from '../harness/result.js';
import { save } from '../harness/save.js';
import { measuredText } from '../report/text.js';
import { benchStorage, storageMeasured } from './storage-bench.js';

/** Enough that a run takes longer than its first and last read. */
const RUN_BYTES = 2 ** 27;
const SWEEP = ['16KiB', '64KiB', '256KiB', '1MiB', '4MiB'];

function options(y: Builder) {
  return y
    .positional('model', SHARED.model)
    .option('directory', SHARED.directory)
    .option('save', SHARED.save)
    .option('io-block', SHARED['io-block'])
    .option('io-depth', SHARED['io-depth'])
    .option('runs', { ...SHARED.runs, default: 5 })
    .option('blocks', {
      type: 'string',
      array: true,
      default: SWEEP,
      describe: 'sizes of reads of the sweep',
    })
    .option('milliseconds', { type: 'number', default: 500, describe: 'of each block size' });
}

type Options = ReturnType<typeof options> extends Argv<infer Given> ? Given : never;

export const command: CommandModule<object, Options> = {
  command: 'storage <model>',
  describe: 'reads of a model from the disk: direct, buffered, prefetched, in both containers',
  builder: options,
  handler: run,
};

async function run(args: ArgumentsCamelCase<Options>): Promise<void> {
  const line = progress(args.json === true);
  const report = await benchStorage({
    model: args.model,
    directory: args.directory ?? tmpdir(),
    ...ioOf(args),
    runs: count('runs', args.runs, 1000),
    bytes: RUN_BYTES,
    blocks: args.blocks.map((size) => blockOf('blocks', size)),
    milliseconds: count('milliseconds', args.milliseconds, 60_000),
    onStep: line.step,
  }).finally(line.stop);
  const measured = storageMeasured(report);
  await save('storage', args, () => measured);
  await print(args, measured, ({ tables }) => measuredText({ metrics: [], tables }));
}

/** For the scorecard: some seconds. */
export async function measureQuick({
  model,
  directory,
}: Pick<MeasureContext, 'model' | 'directory'>): Promise<Measured> {
  const sizes = { block: 2 ** 20, blocks: [2 ** 16, 2 ** 20], depth: 4 };
  return storageMeasured(
    await benchStorage({ model, directory, ...sizes, runs: 5, bytes: RUN_BYTES / 4, milliseconds: 100 }),
  );
}
