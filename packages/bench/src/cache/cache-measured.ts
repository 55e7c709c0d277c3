/** A replay as metrics and a table. */
import { type Measured, type Metric, metric, type Table } from '../harness/result.js';
import type { Predictions } from './record.js';
import { LRU, OPTIMUM, type ReplayReport, type ReplayRow } from './replay.js';

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

/** Misses are what a token waits for. */
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
    title: `${model}, ${tokens} tokens: experts found in memory, %, of ${experts}; the cache begins empty`,
    columns: ['policy', ...sizes.map(({ share, slots }) => `${percent(share)} = ${slots}`)],
    rows: rows.map(({ policy, rates }) => [
      policy.name,
      ...rates.map((rate) => Number((100 * rate).toFixed(2))),
    ]),
  };
}
