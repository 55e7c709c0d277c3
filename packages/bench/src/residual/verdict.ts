/** Both hypotheses by the report's own criteria. */
import { type Measured, metric, type Table } from '../harness/result.js';
import { median } from '../harness/statistics.js';
import type { ResidualReport, SpeculationRow } from './residual-bench.js';

/** "More than 50 % of layers below 0.05, and top-1 accuracy preserved"; the predictor: R² above 0.7. */
export const CRITERIA = { ratio: 0.05, layers: 0.5, sameToken: 0.99, r2: 0.7 } as const;

const middle = (values: readonly number[]) => median([...values].sort((a, b) => a - b));
const fixed = (value: number, digits = 3) => Number(value.toFixed(digits));
const percent = (share: number) => fixed(100 * share, 1);

export interface Verdict {
  /** Layers whose median ratio is below the criterion, as a share. */
  readonly smallLayers: number;
  /** Median over the layers of their medians; that times √L, k of a ratio that falls as k/√L. */
  readonly ratio: number;
  readonly k: number;
  /** The same token where layers begin early as the criterion has it; where all do that can. */
  readonly atCriterion: SpeculationRow | undefined;
  readonly always: SpeculationRow | undefined;
  readonly approachA: boolean;
  /** Median over layers; undefined without experts. */
  readonly r2: number | undefined;
  readonly approachB: boolean | undefined;
}

export function verdictOf({ ratios, speculation, predictor }: ResidualReport): Verdict {
  const medians = ratios.map(middle);
  const smallLayers = medians.filter((ratio) => ratio < CRITERIA.ratio).length / medians.length;
  const ratio = middle(medians);
  const atCriterion = speculation.find(({ threshold }) => threshold === CRITERIA.ratio);
  const r2 = predictor.length ? middle(predictor.map((row) => row.r2)) : undefined;
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
        report.ratios.map(middle),
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
      return [layer, fixed(middle(own)), at(0.1), at(0.9), percent(small / sorted.length)];
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
