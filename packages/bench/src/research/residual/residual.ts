/** `cflow-bench residual`: both hypotheses of the report's §6.3, judged by its criteria. */
import { tmpdir } from 'node:os';
import { experiment } from '../../runner/experiment.js';
import { count, SHARED, seedOf } from '../../runner/options.js';
import { type Measured, metric, type Table } from '../../runner/result.js';
import { median, rounded } from '../../runner/statistics.js';
import { benchResidual, type ResidualReport, type SpeculationRow } from './bench.js';

/** "More than 50 % of layers below 0.05, and top-1 accuracy preserved"; the predictor: R² above 0.7. */
export const CRITERIA = { ratio: 0.05, layers: 0.5, sameToken: 0.99, r2: 0.7 } as const;

const SWEEP = [CRITERIA.ratio, 0.1, 0.2, 0.4, 0.8, Number.POSITIVE_INFINITY];
const QUICK_SWEEP = [CRITERIA.ratio, Number.POSITIVE_INFINITY];

export const residual = experiment({
  name: 'residual',
  positional: '<model>',
  describe: 'output of layers relative to the residual: could layers start early?',
  options: (y) =>
    y
      .positional('model', { ...SHARED.model, describe: '.cflow, .vflow or checkpoint' })
      .option('texts', { ...SHARED.texts, describe: `${SHARED.texts.describe} [default: generated text]` })
      .option('tokens', { type: 'number', default: 2000, describe: 'tokens in total' })
      .option('seed', SHARED.seed),
  timed: false,
  measure: async ({ model, texts, ...args }, run) =>
    benchResidual(
      {
        model,
        texts,
        tokens: count('tokens', args.tokens, 1_000_000),
        seed: seedOf(args.seed),
        thresholds: SWEEP,
        directory: tmpdir(),
      },
      run,
    ),
  quick: ({ model, directory }, run) =>
    benchResidual({ model, tokens: 200, seed: 1, thresholds: QUICK_SWEEP, directory }, run),
  results: residualMeasured,
});

const fixed = (value: number, digits = 3) => rounded(value, digits);
const percent = (share: number) => rounded(100 * share, 1);

export interface Verdict {
  /** Share of layers whose median ratio is below the criterion. */
  readonly smallLayers: number;
  /** Median of the medians of layers; times √L: k, if the ratio falls as k/√L. */
  readonly ratio: number;
  readonly k: number;
  /** Share of equal tokens at the threshold of the criterion, and with all layers early. */
  readonly atCriterion: SpeculationRow | undefined;
  readonly always: SpeculationRow | undefined;
  readonly approachA: boolean;
  /** Median of layers; undefined without experts. */
  readonly r2: number | undefined;
  readonly approachB: boolean | undefined;
}

export function verdictOf({ ratios, speculation, predictor }: ResidualReport): Verdict {
  const medians = ratios.map(median);
  const smallLayers = medians.filter((ratio) => ratio < CRITERIA.ratio).length / medians.length;
  const ratio = median(medians);
  const atCriterion = speculation.find(({ threshold }) => threshold === CRITERIA.ratio);
  const r2 = predictor.length ? median(predictor.map((row) => row.r2)) : undefined;
  return {
    smallLayers,
    ratio,
    k: ratio * Math.sqrt(medians.length),
    atCriterion,
    always: speculation.find(({ threshold }) => threshold === Number.POSITIVE_INFINITY),
    approachA: smallLayers > CRITERIA.layers && (atCriterion?.sameToken ?? 0) >= CRITERIA.sameToken,
    r2,
    approachB: r2 === undefined ? undefined : r2 > CRITERIA.r2,
  };
}

export function residualMeasured(report: ResidualReport): Measured {
  const verdict = verdictOf(report);
  const { model } = report;
  const always = verdict.always;
  return {
    metrics: [
      metric(
        `${model}: layer's part over its input, median of layers`,
        'x',
        'lower',
        report.ratios.map(median),
      ),
      metric(`${model}: the same times the root of the layers`, 'x', 'lower', [verdict.k]),
      metric(`${model}: layers below ${CRITERIA.ratio}`, '%', 'higher', [100 * verdict.smallLayers]),
      ...(always
        ? [metric(`${model}: same token, all layers early`, '%', 'higher', [100 * always.sameToken])]
        : []),
      ...(verdict.r2 === undefined
        ? []
        : [
            metric(
              `${model}: R² of the router's predictor`,
              '',
              'higher',
              report.predictor.map(({ r2 }) => r2),
            ),
          ]),
    ],
    tables: [ratioTable(report), speculationTable(report), ...predictorTable(report), verdictTable(verdict)],
  };
}

function ratioTable({ model, tokens, ratios }: ResidualReport): Table {
  return {
    title: `${model}: what a layer gives over its input, ${tokens} tokens`,
    columns: ['layer', 'median', '10 %', '90 %', `below ${CRITERIA.ratio}, %`],
    rows: ratios.map((own, layer) => {
      const sorted = [...own].sort((a, b) => a - b);
      const at = (share: number) => fixed(sorted[Math.floor(share * (sorted.length - 1))]!);
      const small = sorted.filter((ratio) => ratio < CRITERIA.ratio).length;
      return [layer, fixed(median(own)), at(0.1), at(0.9), percent(small / sorted.length)];
    }),
  };
}

function speculationTable({ speculation }: ResidualReport): Table {
  return {
    title: 'Approach A: layers that begin before the one below has ended',
    columns: ['threshold', 'accepted, %', 'latency, %', 'work, %', 'same token, %', 'KL, nats'],
    rows: speculation.map(({ threshold, accepted, latency, work, sameToken, kl }) => [
      Number.isFinite(threshold) ? threshold : 'none',
      ...[accepted, latency, work, sameToken].map(percent),
      fixed(kl, 5),
    ]),
  };
}

function predictorTable({ predictor }: ResidualReport): Table[] {
  if (!predictor.length) return [];
  return [
    {
      title: 'Approach B: what router logits tell of what the experts give',
      columns: ['layer', 'R²'],
      rows: predictor.map(({ layer, r2 }) => [layer, fixed(r2)]),
    },
  ];
}

const holds = (ok: boolean | undefined) => (ok === undefined ? 'no experts' : ok ? 'holds' : 'fails');

function verdictTable({ smallLayers, k, atCriterion, approachA, r2, approachB }: Verdict): Table {
  const same = atCriterion ? `, same token ${percent(atCriterion.sameToken)} %` : '';
  const small = `${percent(smallLayers)} % of layers below ${CRITERIA.ratio} (asked: more than 50)`;
  const told = r2 === undefined ? '-' : `R² ${fixed(r2)} (asked: more than ${CRITERIA.r2})`;
  return {
    title: 'Verdict by the criteria of the report',
    columns: ['hypothesis', 'verdict', 'because'],
    rows: [
      ['A: the residual dominates', holds(approachA), `${small}${same}; ratio ${fixed(k, 2)} / √L`],
      ['B: the router tells', holds(approachB), told],
    ],
  };
}
