/** `cflow-bench peers`. */
import { decodeMetrics } from '../decode/decode-metrics.js';
import { warnIfBusy } from '../harness/busy.js';
import { type Builder, count, print, SHARED, threadsOf } from '../harness/cli-common.js';
import { progress } from '../harness/progress.js';
import { type Measured, metric, type Table } from '../harness/result.js';
import { save } from '../harness/save.js';
import { measuredText, spreadText } from '../report/text.js';
import { benchPeers, type PeerComparison } from './peers-bench.js';

/** What the comparison is about: a dense model, many small experts, and few large ones. */
export const PEER_MODELS: readonly string[] = ['dense-1.1b', 'olmoe', 'mixtral'];

const { context, layers, prefill, runs, threads, tokens } = SHARED;

export function peersOptions(y: Builder) {
  return y
    .positional('models', {
      type: 'string',
      array: true,
      describe: `geometries or model files [default: ${PEER_MODELS.join(' ')}]`,
    })
    .options({ threads, runs, tokens: { ...tokens, default: 32 }, prefill, layers })
    .option('context', { ...context, default: 1024 })
    .option('checked', {
      type: 'number',
      default: 64,
      describe: 'positions at which the choices are compared',
    })
    .option('directory', { type: 'string', describe: 'where files are kept; else they are removed again' });
}

export async function runPeers(
  args: Awaited<ReturnType<ReturnType<typeof peersOptions>['parse']>> & { json?: unknown },
): Promise<void> {
  await warnIfBusy();
  const line = progress(args.json === true);
  const comparisons = await benchPeers({
    models: args.models?.length ? args.models : PEER_MODELS,
    tokens: count('tokens', args.tokens, 100_000),
    prefill: count('prefill', args.prefill, 100_000),
    context: count('context', args.context, 100_000, 0),
    checked: count('checked', args.checked, 100_000, 0),
    warmup: 128,
    runs: count('runs', args.runs, 1_000),
    threads: await threadsOf(args.threads),
    directory: args.directory,
    ...(args.layers === undefined ? {} : { layers: count('layers', args.layers, 65_535) }),
    onStep: line.step,
  }).finally(line.stop);
  const measured = peersMeasured(comparisons);
  await save('peers', args, () => measured);
  await print(args, measured, ({ tables }) => measuredText({ metrics: [], tables }));
}

/** `model subject: figure`, and `model: figure, times llama.cpp` of each round. */
export function peersMeasured(comparisons: readonly PeerComparison[]): Measured {
  const metrics = comparisons.flatMap(({ model, report, ratios, agreement }) => [
    ...decodeMetrics(report, `${model} `),
    ...Object.entries(ratios).map(([figure, rounds]) =>
      metric(`${model}: ${figure}, times llama.cpp`, '×', 'higher', rounds),
    ),
    ...(agreement === undefined
      ? []
      : [metric(`${model}: same token chosen`, '%', 'higher', [100 * agreement])]),
  ]);
  return { metrics, tables: comparisons.map(tableOf) };
}

const OURS = 'cflow';
const THEIRS = 'llama.cpp';

function tableOf({ model, report, ratios, agreement }: PeerComparison): Table {
  const metrics = new Map(decodeMetrics(report).map((entry) => [entry.name, entry]));
  const cell = (subject: string, figure: string) => {
    const found = metrics.get(`${subject}: ${figure}`);
    return found ? `${spreadText(found)} ${found.unit}`.trim() : null;
  };
  const rows = Object.entries(ratios).map(([figure, rounds]) => [
    figure,
    cell(OURS, figure),
    cell(THEIRS, figure),
    `${spreadText(metric(figure, '×', 'higher', rounds))} ×`,
  ]);
  const backends = report.rows.map(
    ({ subject, backend, threads }) => `${subject}: ${backend}, ${threads} threads`,
  );
  const same =
    agreement === undefined ? [] : [['same token chosen', `${(100 * agreement).toFixed(1)} %`, null, null]];
  return {
    title: `${model} (${backends.join('; ')})`,
    columns: ['', OURS, THEIRS, 'ours better by'],
    rows: [...rows, ...same],
  };
}
