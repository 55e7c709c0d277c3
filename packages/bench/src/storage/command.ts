/** `cflow-bench storage`. */
import { tmpdir } from 'node:os';
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { type Builder, count, print } from '../harness/cli-common.js';
import { progress } from '../harness/progress.js';
import type { MeasureContext } from '../harness/quick.js';
import type { Measured } from '../harness/result.js';
import { save } from '../harness/save.js';
import { measuredText } from '../report/text.js';
import { benchStorage, storageMeasured } from './storage-bench.js';

const KIB = 1024;
/** Enough that a run takes longer than its first and last read. */
const RUN_BYTES = 2 ** 27;
const SWEEP = [16, 64, 256, 1024, 4096];

function options(y: Builder) {
  return y
    .positional('model', { type: 'string', demandOption: true, describe: '.cflow or .vflow' })
    .option('directory', { type: 'string', default: tmpdir(), describe: 'for the other container' })
    .option('block', { type: 'number', default: 1024, describe: 'KiB of one read of a pass' })
    .option('depth', { type: 'number', default: 4, describe: 'reads under way at once' })
    .option('runs', { type: 'number', default: 5, describe: 'of each pass, in turns' })
    .option('blocks', { type: 'number', array: true, default: SWEEP, describe: 'KiB, of the sweep' })
    .option('milliseconds', { type: 'number', default: 500, describe: 'of each block size' });
}

type Options = ReturnType<typeof options> extends Argv<infer Given> ? Given : never;

const MOST_KIB = 2 ** 20;

export const command: CommandModule<object, Options> = {
  command: 'storage <model>',
  describe: 'reads of a model from the disk: direct, buffered, prefetched, in both containers',
  builder: options,
  handler: run,
};

/** @throws CflowError USAGE unless it is a multiple of 4 KiB */
const bytesOf = (field: string, kib: number) => 4 * KIB * count(`${field} / 4`, kib / 4, MOST_KIB / 4);

async function run(args: ArgumentsCamelCase<Options>): Promise<void> {
  const line = progress(args.json === true);
  const report = await benchStorage({
    model: args.model,
    directory: args.directory,
    block: bytesOf('block', args.block),
    depth: count('depth', args.depth, 256),
    runs: count('runs', args.runs, 1000),
    bytes: RUN_BYTES,
    blocks: args.blocks.map((kib) => bytesOf('blocks', kib)),
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
  const sizes = { block: 1024 * KIB, blocks: [64 * KIB, 1024 * KIB], depth: 4 };
  return storageMeasured(
    await benchStorage({ model, directory, ...sizes, runs: 5, bytes: RUN_BYTES / 4, milliseconds: 100 }),
  );
}
