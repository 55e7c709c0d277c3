/** `cflow-bench cache`: recorded routings against policies and sizes of the expert cache. */
import { CflowError } from '@cflow/format';
import { readTextFile } from '@cflow/format/node';
import {
  readTrace,
  traceHeader,
  traceTokens,
  writeTrace,
} from '@cflow/runtime-native/internal/tiers/trace-file.js';
import { experiment } from '../../runner/experiment.js';
import { checkOutput, requireFile } from '../../runner/files.js';
import { count, SHARED } from '../../runner/options.js';
import { type Measured, type Metric, metric, type Table } from '../../runner/result.js';
import { rounded } from '../../runner/statistics.js';
import { type Predictions, predictions, record } from './record.js';
import {
  ENGINE,
  LFU,
  LRU,
  lrfu,
  OPTIMUM,
  type Policy,
  type ReplayReport,
  type ReplayRow,
  replayTrace,
} from './replay.js';

const SHARES = [15, 25, 35, 50, 70];
const HALF_LIVES = [4, 8, 16, 32, 64, 128, 256, 512];

export const cache = experiment({
  name: 'cache',
  positional: '[trace]',
  describe: 'recorded routings against policies and sizes of the expert cache',
  options: (y) =>
    y
      .positional('trace', { type: 'string', describe: 'written by cflow-run --trace, or by --record' })
      .option('record', { type: 'string', describe: 'model whose routings are recorded and replayed' })
      .option('texts', { ...SHARED.texts, describe: `${SHARED.texts.describe} [default: generated text]` })
      .option('output', { type: 'string', describe: 'trace to write [default: none]' })
      .option('tokens', { type: 'number', default: 2000, describe: 'tokens to record' })
      .option('shares', { ...SHARED.shares, default: SHARES })
      .option('half-lives', {
        type: 'number',
        array: true,
        default: HALF_LIVES,
        describe: 'half-lives of LRFU, tokens',
      })
      .conflicts('trace', 'record'),
  timed: false,
  async measure(args) {
    await checkOutput(args.output, args);
    const shares = args.shares.map((percent) => count('shares', percent, 100) / 100);
    const halfLives = args.halfLives.map((tokens) => count('half-lives', tokens, 1e9));
    const policies = [LRU, ...halfLives.map(lrfu), LFU, ENGINE, OPTIMUM];
    return args.record === undefined
      ? replayFile(args.trace, shares, policies)
      : recordAndReplay(args.record, args, shares, policies);
  },
  quick: ({ model }) => recordAndReplay(model, { tokens: 600 }, [0.35], [LRU, ENGINE]),
  results: ({ report, predicted }) => cacheMeasured(report, predicted),
  shown: /^prediction/,
});

interface CacheReport {
  readonly report: ReplayReport;
  /** With a model that predicts. */
  readonly predicted?: Predictions | undefined;
}

async function replayFile(
  trace: string | undefined,
  shares: readonly number[],
  policies: readonly Policy[],
): Promise<CacheReport> {
  if (trace === undefined)
    throw new CflowError('USAGE', 'no trace given', { remedy: 'give a trace, or a model with --record' });
  await requireFile(trace);
  return { report: await replayTrace(await readTrace(trace), shares, policies) };
}

interface Recorded {
  readonly tokens: number;
  readonly texts?: string | undefined;
  /** File for the trace. */
  readonly output?: string | undefined;
}

async function recordAndReplay(
  model: string,
  { output, ...args }: Recorded,
  shares: readonly number[],
  policies: readonly Policy[],
): Promise<CacheReport> {
  const texts = args.texts === undefined ? undefined : await readTextFile(args.texts);
  const tokens = count('tokens', args.tokens, 10_000_000);
  const { config, routings } = await record(model, texts, tokens);
  const header = traceHeader(config);
  if (output !== undefined) await writeTrace(output, header, routings);
  const report = await replayTrace({ header, tokens: traceTokens(header, routings) }, shares, policies);
  const predicted = config.expertDelay === 0 ? await predictions(model, config, texts, tokens) : undefined;
  return { report, predicted };
}

const percent = (share: number) => `${Math.round(100 * share)} %`;

export function cacheMeasured(report: ReplayReport, predictions?: Predictions): Measured {
  const foreseen = predictions ? predictionMetrics(predictions) : [];
  return {
    metrics: [...report.rows.flatMap((row) => rateMetrics(row, report)), ...gains(report), ...foreseen],
    tables: [rateTable(report)],
  };
}

function rateMetrics({ policy, rates }: ReplayRow, { sizes }: ReplayReport): Metric[] {
  return sizes.map(({ share }, i) =>
    metric(`${policy.name}, ${percent(share)} of the experts: hit rate`, '%', 'higher', [100 * rates[i]!]),
  );
}

/** A token waits for misses. */
function gains({ rows, sizes }: ReplayReport): Metric[] {
  const recent = rows.find(({ policy }) => policy === LRU);
  if (!recent) return [];
  const others = rows.filter(({ policy }) => policy !== LRU && policy !== OPTIMUM);
  return others.flatMap(({ policy, rates }) =>
    sizes.flatMap(({ share }, i) => {
      const [theirs, ours] = [1 - recent.rates[i]!, 1 - rates[i]!];
      return ours > 0
        ? [
            metric(
              `${policy.name}, ${percent(share)} of the experts: misses of LRU by its own`,
              'x',
              'higher',
              [theirs / ours],
            ),
          ]
        : [];
    }),
  );
}

function predictionMetrics({ foreseen, right }: Predictions): Metric[] {
  return [
    metric('prediction: reads that were foreseen', '%', 'higher', [100 * foreseen]),
    metric('prediction: reads ahead that were right', '%', 'higher', [100 * right]),
  ];
}

function rateTable({ model, tokens, experts, sizes, rows }: ReplayReport): Table {
  return {
    title: `${model}, ${tokens} tokens: hit rate of the expert cache, %, of ${experts} experts; the cache starts empty`,
    columns: ['policy', ...sizes.map(({ share, slots }) => `${percent(share)} = ${slots}`)],
    rows: rows.map(({ policy, rates }) => [policy.name, ...rates.map((rate) => rounded(100 * rate))]),
  };
}
