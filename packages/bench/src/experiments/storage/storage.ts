/** `cflow-bench storage`. */

import { tmpdir } from 'node:os';
import { fileText } from '#cli-kit/bytes.js';
import { experiment } from '../../runner/experiment.js';
import { blockOf, count, ioOf, kib, SHARED } from '../../runner/options.js';
import { type Measured, metric, type Table } from '../../runner/result.js';
import { rounded, spread } from '../../runner/statistics.js';
import { benchStorage, type Pass, type PassRow, type StorageReport } from './passes.js';

/** Large enough that first and last read do not dominate a run. */
const RUN_BYTES = 2 ** 27;
const SWEEP = ['16KiB', '64KiB', '256KiB', '1MiB', '4MiB'];

export const storage = experiment({
  name: 'storage',
  positional: '<model>',
  describe: 'read a model from disk: direct and buffered, with prefetch, in both file formats',
  options: (y) =>
    y
      .positional('model', SHARED.model)
      .option('directory', SHARED.directory)
      .option('io-block', SHARED['io-block'])
      .option('io-depth', SHARED['io-depth'])
      .option('runs', { ...SHARED.runs, default: 5 })
      .option('blocks', { type: 'string', array: true, default: SWEEP, describe: 'read sizes of the sweep' })
      .option('milliseconds', { type: 'number', default: 500, describe: 'for each read size' }),
  timed: true,
  measure: async (args, run) =>
    benchStorage(
      {
        model: args.model,
        directory: args.directory ?? tmpdir(),
        ...ioOf(args),
        runs: count('runs', args.runs, 1000),
        bytes: RUN_BYTES,
        blocks: args.blocks.map((size) => blockOf('blocks', size)),
        milliseconds: count('milliseconds', args.milliseconds, 60_000),
      },
      run,
    ),
  quick({ model, directory }, run) {
    const sizes = { block: 2 ** 20, blocks: [2 ** 16, 2 ** 20], depth: 4, bytes: RUN_BYTES / 4 };
    return benchStorage({ model, directory, ...sizes, runs: 5, milliseconds: 100 }, run);
  },
  results: storageMeasured,
});

const GB = 'GB/s';
const three = (value: number) => rounded(value, 3);

export const passName = ({ container, order, mode, prefetch }: Pass) =>
  `.${container}, ${mode}, order of the ${order}, prefetch ${prefetch ? 1 : 0}`;

export function storageMeasured(report: StorageReport): Measured {
  const { passes, sweep } = report;
  return {
    metrics: [
      ...passes.map((pass) => metric(`${passName(pass)}: read`, GB, 'higher', pass.speeds)),
      ...ratios(
        passes,
        ({ prefetch }) => prefetch,
        (pass) => ({ ...pass, prefetch: false }),
        'prefetch 1 by 0',
      ),
      ...ratios(
        passes,
        ({ container }) => container === 'vflow',
        (pass) => ({ ...pass, container: 'cflow' }),
        '.vflow by .cflow',
      ),
      ...sweep.map(({ mode, depth, block, speed }) =>
        metric(`blocks of ${kib(block)}, ${mode}, ${depth} at once: read`, GB, 'higher', [speed]),
      ),
    ],
    tables: [passTable(report), sweepTable(report)],
  };
}

/** Ratios, run by run, of passes that differ in one setting. */
function ratios(
  passes: readonly PassRow[],
  changed: (pass: Pass) => boolean,
  back: (pass: Pass) => Pass,
  title: string,
) {
  return passes.filter(changed).map((pass) => {
    const before = passes.find((other) => passName(other) === passName(back(pass)))!;
    const runs = pass.speeds.map((speed, run) => speed / before.speeds[run]!);
    return metric(`${passName(pass)}: ${title}`, 'x', 'higher', runs);
  });
}

function passTable({ passes, fileBytes, block, depth }: StorageReport): Table {
  const reason = passes.find((pass) => pass.reason)?.reason;
  return {
    title: `Passes over ${fileText(fileBytes)}, reads of ${kib(block)}, ${depth} at once${reason ? `; not direct: ${reason}` : ''}`,
    columns: ['mode', 'order', 'container', 'prefetch', 'MB', 'GB/s', 'min', 'max'],
    rows: passes.map(({ mode, order, container, prefetch, bytes, speeds }) => {
      const { median, min, max } = spread(speeds);
      const numbers = [bytes / 1e6, median, min, max].map(three);
      return [mode, order, `.${container}`, prefetch ? 1 : 0, ...numbers];
    }),
  };
}

function sweepTable({ sweep }: StorageReport): Table {
  const columns = [...new Set(sweep.map(({ mode, depth }) => `${mode}, ${depth} at once`))];
  const blocks = [...new Set(sweep.map(({ block }) => block))];
  return {
    title: 'Random blocks, GB/s',
    columns: ['block', ...columns],
    rows: blocks.map((block) => [
      kib(block),
      ...sweep.filter((row) => row.block === block).map(({ speed }) => three(speed)),
    ]),
  };
}
