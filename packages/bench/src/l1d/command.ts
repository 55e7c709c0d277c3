/** `cflow-bench l1d`. */
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { type Builder, count, print, SHARED } from '../harness/cli-common.js';
import { progress } from '../harness/progress.js';
import type { Measured } from '../harness/result.js';
import { save } from '../harness/save.js';
import { measuredText } from '../report/text.js';
import { cacheOfMachine, parseCache, REPORTED_CACHES } from './caches.js';
import { benchL1d, l1dMeasured } from './l1d-bench.js';
import type { Caches } from './simulate.js';

/** Enough for the counts of a row to repeat themselves; half a minute for everything. */
const SIMULATED_ROWS = 512;
const QUICK_ROWS = 128;

function options(y: Builder) {
  return y
    .option('isa', { type: 'string', default: '', describe: 'whose kernels [default: the best]' })
    .option('l1d', {
      type: 'string',
      describe: 'bytes/ways, simulated [default: of this machine, of the report]',
    })
    .option('l2', { type: 'string', describe: 'bytes/ways, simulated' })
    .option('simulated-rows', { type: 'number', default: SIMULATED_ROWS, describe: 'of each matrix' })
    .option('timed-rows', { type: 'number', default: 2 ** 15, describe: 'of each matrix' })
    .option('runs', { ...SHARED.runs, default: 5 })
    .option('save', SHARED.save)
    .option('cachegrind', { type: 'string', describe: 'check by valgrind with this locality-test' });
}

type Options = ReturnType<typeof options> extends Argv<infer Given> ? Given : never;

export const command: CommandModule<object, Options> = {
  command: 'l1d',
  describe: 'misses and time of tiled and of row-major weights',
  builder: options,
  handler: run,
};

async function run(args: ArgumentsCamelCase<Options>): Promise<void> {
  const line = progress(args.json === true);
  const report = await benchL1d({
    isa: args.isa,
    caches: await cachesOf(args),
    simulatedRows: count('simulated-rows', args.simulatedRows, 2 ** 20),
    timedRows: count('timed-rows', args.timedRows, 2 ** 20),
    runs: count('runs', args.runs, 1000),
    cachegrind: args.cachegrind,
    onStep: line.step,
  }).finally(line.stop);
  const measured = l1dMeasured(report);
  await save('l1d', args, () => measured);
  await print(args, measured, ({ tables }) => measuredText({ metrics: [], tables }));
}

/** For the scorecard: a stripe of each matrix, no more than some seconds. */
export async function measureQuick(): Promise<Measured> {
  const caches = await cachesOf({});
  return l1dMeasured(
    await benchL1d({ isa: '', caches, simulatedRows: QUICK_ROWS, timedRows: 1024, runs: 3 }),
  );
}

/** As asked; or this machine's, and those of the report where they differ. */
async function cachesOf({
  l1d,
  l2,
}: {
  l1d?: string | undefined;
  l2?: string | undefined;
}): Promise<Caches[]> {
  const here = {
    first: l1d === undefined ? await cacheOfMachine(1) : parseCache('l1d', l1d),
    second: l2 === undefined ? await cacheOfMachine(2) : parseCache('l2', l2),
  };
  const { first = REPORTED_CACHES.first, second = REPORTED_CACHES.second } = here;
  const same = first.bytes === REPORTED_CACHES.first.bytes && first.ways === REPORTED_CACHES.first.ways;
  return l1d !== undefined || same ? [{ first, second }] : [REPORTED_CACHES, { first, second }];
}
