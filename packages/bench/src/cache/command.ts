/** `cflow-bench cache`. */
import { CflowError } from '@cflow/format';
import { readTextFile } from '@cflow/format/node';
import { readTrace, traceHeader, traceTokens, writeTrace } from '@cflow/runtime-native';
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { type Builder, count, print, SHARED } from '../harness/cli-common.js';
import { checkOutput, requireFile } from '../harness/files.js';
import type { MeasureContext } from '../harness/quick.js';
import type { Measured } from '../harness/result.js';
import { save } from '../harness/save.js';
import { measuredText } from '../report/text.js';
import { cacheMeasured } from './cache-measured.js';
import { predictions, record } from './record.js';
import { ENGINE, LFU, LRU, lrfu, OPTIMUM, type Policy, replayTrace } from './replay.js';

const SHARES = [15, 25, 35, 50, 70];
const HALF_LIVES = [4, 8, 16, 32, 64, 128, 256, 512];

function options(y: Builder) {
  return y
    .positional('trace', { type: 'string', describe: 'of cflow-run --trace or --record' })
    .option('record', {
      type: 'string',
      describe: 'a model whose routings are recorded first, into --output',
    })
    .option('save', SHARED.save)
    .option('texts', { ...SHARED.texts, describe: `${SHARED.texts.describe} [default: what the model says]` })
    .option('output', { type: 'string', describe: 'trace to write [default: none]' })
    .option('tokens', { type: 'number', default: 2000, describe: 'recorded' })
    .option('shares', { ...SHARED.shares, default: SHARES })
    .option('half-lives', { type: 'number', array: true, default: HALF_LIVES, describe: 'of LRFU, tokens' })
    .conflicts('trace', 'record');
}

type Options = ReturnType<typeof options> extends Argv<infer Given> ? Given : never;

export const command: CommandModule<object, Options> = {
  command: 'cache [trace]',
  describe: 'recorded routings against policies and sizes of the cache of experts',
  builder: options,
  handler: run,
};

const policiesOf = (halfLives: readonly number[]): readonly Policy[] => [
  LRU,
  ...halfLives.map(lrfu),
  LFU,
  ENGINE,
  OPTIMUM,
];

async function run(args: ArgumentsCamelCase<Options>): Promise<void> {
  await checkOutput(args.output, args);
  const shares = args.shares.map((percent) => count('shares', percent, 100) / 100);
  const policies = policiesOf(args.halfLives.map((tokens) => count('half-lives', tokens, 1e9)));
  const measured = await (args.record === undefined
    ? replayFile(args.trace, shares, policies)
    : recordAndReplay(args.record, args, shares, policies));
  await save('cache', args, () => measured);
  await print(args, measured, ({ tables, metrics }) =>
    measuredText({ metrics: metrics.filter(({ name }) => name.startsWith('prediction')), tables }),
  );
}

async function replayFile(
  trace: string | undefined,
  shares: readonly number[],
  policies: readonly Policy[],
): Promise<Measured> {
  if (trace === undefined)
    throw new CflowError('USAGE', 'what is to be replayed?', { remedy: 'name a trace, or --record a model' });
  await requireFile(trace);
  return cacheMeasured(await replayTrace(await readTrace(trace), shares, policies));
}

async function recordAndReplay(
  model: string,
  args: Pick<Options, 'output' | 'tokens'> & { readonly texts?: string | undefined },
  shares: readonly number[],
  policies: readonly Policy[],
): Promise<Measured> {
  const texts = args.texts === undefined ? undefined : await readTextFile(args.texts);
  const tokens = count('tokens', args.tokens, 10_000_000);
  const { config, routings } = await record(model, texts, tokens);
  const header = traceHeader(config);
  if (args.output !== undefined) await writeTrace(args.output, header, routings);
  const report = await replayTrace({ header, tokens: traceTokens(header, routings) }, shares, policies);
  const predicted = config.expertDelay === 0 ? await predictions(model, config, texts, tokens) : undefined;
  return cacheMeasured(report, predicted);
}

/** For the scorecard: some hundred tokens of the model itself. */
export async function measureQuick({ model }: Pick<MeasureContext, 'model'>): Promise<Measured> {
  const args = { tokens: 600, output: undefined };
  return recordAndReplay(model, args, [0.35], [LRU, ENGINE]);
}
