/** `cflow-bench peers`. */

import { CflowError } from '@cflow/format';
import { plural } from '#cli-kit/text.js';
import { spreadText } from '../../report/text.js';
import { experiment } from '../../runner/experiment.js';
import { count, SHARED, threadsOf } from '../../runner/options.js';
import { type Measured, type Metric, metric, type Table } from '../../runner/result.js';
import { decodeMetrics, FIGURES } from '../decode/bench.js';
import { benchPeers, CHECKED, type PeerComparison } from './bench.js';
import type { EngineQuality, PeerQuality } from './quality.js';

/** Dense, many small experts, few large experts. */
export const PEER_MODELS: readonly string[] = ['dense-1.1b', 'olmoe', 'mixtral'];

const { context, layers, prefill, runs, texts, threads, tokens } = SHARED;
/** Token ids are an argument of a process, which limits their length. */
const MOST_CHECKED = 10_000;

export const peers = experiment({
  name: 'peers',
  positional: '[models..]',
  describe: 'our engine and llama.cpp on the same weights: speed, memory, quality',
  options: (y) =>
    y
      .positional('models', {
        type: 'string',
        array: true,
        describe: `geometries or model files [default: ${PEER_MODELS.join(' ')}]`,
      })
      .options({ threads, runs, tokens: { ...tokens, default: 32 }, prefill, layers })
      .option('context', { ...context, default: 1024 })
      .option('checked', {
        type: 'number',
        default: CHECKED,
        describe: 'tokens on which quality is compared; 0: none',
      })
      .option('texts', {
        ...texts,
        describe: `${texts.describe} [default: pseudo-random tokens]`,
      })
      .option('directory', { type: 'string', describe: 'keep the files here [default: removed]' }),
  timed: true,
  measure: async (args, run) =>
    benchPeers(
      {
        models: args.models?.length ? args.models : PEER_MODELS,
        tokens: count('tokens', args.tokens, 100_000),
        prefill: count('prefill', args.prefill, 100_000),
        context: count('context', args.context, 100_000, 0),
        checked: count('checked', args.checked, MOST_CHECKED, 0),
        texts: args.texts,
        warmup: 128,
        runs: count('runs', args.runs, 1_000),
        threads: await threadsOf(args.threads),
        directory: args.directory,
        ...(args.layers === undefined ? {} : { layers: count('layers', args.layers, 65_535) }),
      },
      run,
    ),
  quick: async ({ quick, threads }, run) => {
    if (quick) throw new CflowError('UNSUPPORTED', 'not part of a quick run: needs gigabytes of weights');
    const lengths = { tokens: 32, prefill: 512, warmup: 128, context: 1024, checked: CHECKED };
    return benchPeers({ models: PEER_MODELS, threads, runs: 3, ...lengths }, run);
  },
  results: peersMeasured,
});

/** Quality figures, in the order of the table. */
const QUALITY: readonly QualityFigure[] = [
  { name: 'perplexity', unit: '', better: 'lower', of: ({ perplexity }) => perplexity },
  { name: 'KL from f32 arithmetic', unit: 'nats', better: 'lower', of: ({ kl }) => kl },
];

interface QualityFigure extends Pick<Metric, 'name' | 'unit' | 'better'> {
  readonly of: (quality: EngineQuality) => number | undefined;
}

const OURS = 'cflow';
const THEIRS = 'llama.cpp';

/** `model engine: figure`, and `model: figure, times llama.cpp` of each round. */
export function peersMeasured(comparisons: readonly PeerComparison[]): Measured {
  const metrics = comparisons.flatMap(({ model, report, ratios, quality }) => [
    ...decodeMetrics(report, `${model} `),
    ...Object.entries(ratios).map(([figure, rounds]) =>
      metric(`${model}: ${figure}, times llama.cpp`, '×', 'higher', rounds),
    ),
    ...(quality ? qualityMetrics(model, quality) : []),
  ]);
  return { metrics, tables: comparisons.map(tableOf) };
}

function qualityMetrics(model: string, { ours, theirs, between, sameToken }: PeerQuality): Metric[] {
  const engines = [
    [OURS, ours],
    [THEIRS, theirs],
  ] as const;
  const each = engines.flatMap(([engine, quality]) =>
    QUALITY.flatMap(({ name, unit, better, of }) => {
      const value = of(quality);
      return value === undefined ? [] : [metric(`${model} ${engine}: ${name}`, unit, better, [value])];
    }),
  );
  return [
    ...each,
    metric(`${model}: KL from ours to llama.cpp`, 'nats', 'lower', [between]),
    metric(`${model}: same token chosen`, '%', 'higher', [100 * sameToken]),
  ];
}

function tableOf({ model, report, ratios, quality }: PeerComparison): Table {
  const metrics = new Map(decodeMetrics(report).map((entry) => [entry.name, entry]));
  const cell = (engine: string, figure: string) => {
    const found = metrics.get(`${engine}: ${figure}`);
    return found ? `${spreadText(found)} ${found.unit}`.trim() : null;
  };
  const ratio = (rounds: readonly number[] | undefined) =>
    rounds ? `${spreadText(metric('ratio', '×', 'higher', rounds))} ×` : null;
  const rows = FIGURES.map(({ name }) => [name, cell(OURS, name), cell(THEIRS, name), ratio(ratios[name])]);
  const backends = report.rows.map(
    ({ engine, backend, threads }) => `${engine}: ${backend}, ${plural(threads, 'thread')}`,
  );
  return {
    title: `${model} (${backends.join('; ')})`,
    columns: ['', OURS, THEIRS, 'ours better by'],
    rows: [...rows.filter(([, ours]) => ours !== null), ...(quality ? qualityRows(quality) : [])],
  };
}

function qualityRows({ positions, ours, theirs, between, sameToken }: PeerQuality): Table['rows'] {
  const text = (value: number | undefined, unit: string) =>
    value === undefined ? null : `${value.toPrecision(4)} ${unit}`.trim();
  const each = QUALITY.map(({ name, unit, of }) => {
    const [a, b] = [of(ours), of(theirs)];
    const ratio = a && b ? `${(b / a).toPrecision(4)} ×` : null;
    return [name, text(a, unit), text(b, unit), ratio];
  });
  return [
    ...each,
    ['KL from ours to llama.cpp', text(between, 'nats'), null, null],
    [`same token chosen, of ${positions}`, `${(100 * sameToken).toFixed(1)} %`, null, null],
  ];
}
