/** `cflow-bench residual`. */
import { tmpdir } from 'node:os';
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { type Builder, count, print, SHARED, seedOf } from '../harness/cli-common.js';
import { progress } from '../harness/progress.js';
import type { MeasureContext } from '../harness/quick.js';
import type { Measured } from '../harness/result.js';
import { save } from '../harness/save.js';
import { measuredText } from '../report/text.js';
import { benchResidual } from './residual-bench.js';
import { CRITERIA, residualMeasured } from './verdict.js';

const SWEEP = [CRITERIA.ratio, 0.1, 0.2, 0.4, 0.8, Number.POSITIVE_INFINITY];
const QUICK_SWEEP = [CRITERIA.ratio, Number.POSITIVE_INFINITY];

function options(y: Builder) {
  return y
    .positional('model', { ...SHARED.model, describe: '.cflow, .vflow or checkpoint' })
    .option('texts', { ...SHARED.texts, describe: `${SHARED.texts.describe} [default: what the model says]` })
    .option('tokens', { type: 'number', default: 2000, describe: 'in all' })
    .option('seed', SHARED.seed)
    .option('save', SHARED.save);
}

type Options = ReturnType<typeof options> extends Argv<infer Given> ? Given : never;

export const command: CommandModule<object, Options> = {
  command: 'residual <model>',
  describe: 'what layers add to the residual: could they begin early?',
  builder: options,
  handler: run,
};

async function run(args: ArgumentsCamelCase<Options>): Promise<void> {
  const line = progress(args.json === true);
  const report = await benchResidual({
    model: args.model,
    texts: args.texts,
    tokens: count('tokens', args.tokens, 1_000_000),
    seed: seedOf(args.seed),
    thresholds: SWEEP,
    directory: tmpdir(),
    onStep: line.step,
  }).finally(line.stop);
  const measured = residualMeasured(report);
  await save('residual', args, () => measured);
  await print(args, measured, ({ tables }) => measuredText({ metrics: [], tables }));
}

/** For the scorecard: two hundred tokens of the model itself, some seconds. */
export async function measureQuick({
  model,
  directory,
}: Pick<MeasureContext, 'model' | 'directory'>): Promise<Measured> {
  return residualMeasured(
    await benchResidual({ model, tokens: 200, seed: 1, thresholds: QUICK_SWEEP, directory }),
  );
}
