/** Which metrics stand in one chart. */
import type { BenchResult, Metric } from '../harness/result.js';
import type { ChartData } from './charts.js';
import { rangeOf } from './scale.js';

export interface NamedResult {
  /** Of its file, without folder and extension. */
  readonly name: string;
  readonly result: BenchResult;
}

export interface KeyedChart extends ChartData {
  /** Unique among the charts of a report, and fit for a file name. */
  readonly key: string;
  readonly command: string;
}

/** A metric on its way into a chart: `cflow: decode` is the row `cflow` of the figure `decode`. */
interface Placed {
  readonly command: string;
  readonly series: string;
  readonly figure: string;
  readonly row: string;
  readonly metric: Metric;
}

/** Bars and spaces that a chart has at most: more are hard to read, and pictures grow beyond a screen. */
const MOST = 48;

/**
 * One chart for each command, figure, unit and direction, so that its title is true of every bar; figures of one row
 * stand together by unit and direction. Results of one command stand side by side, and long charts come in parts.
 */
export function chartsOf(results: readonly NamedResult[]): KeyedChart[] {
  const charts = groupBy(gathered(results.flatMap(placed)), ({ command, figure, metric: { unit, better } }) =>
    JSON.stringify([command, figure, unit, better]),
  ).flatMap((group) => {
    const parts = partsOf(group);
    const names = new Set(group.map(({ series }) => series));
    if (parts.length === 1) return chartOf(group, names);
    const whole = rangeOf(group.map(({ metric }) => metric));
    return parts.map((part, index) => ({ ...chartOf(part, names, [index + 1, parts.length]), whole }));
  });
  const seen = new Map<string, number>();
  return charts.map((chart) => {
    const times = (seen.get(chart.key) ?? 0) + 1;
    seen.set(chart.key, times);
    return times > 1 ? { ...chart, key: `${chart.key}-again-${times}` } : chart;
  });
}

function placed({ name: series, result: { command, metrics } }: NamedResult): Placed[] {
  return metrics.map((metric) => {
    const at = metric.name.lastIndexOf(': ');
    const [row, figure] = at < 0 ? [metric.name, ''] : [metric.name.slice(0, at), metric.name.slice(at + 2)];
    return { command, series, figure, row, metric };
  });
}

/** A figure of one row alone joins the others of its command: under the whole name, without a figure. */
function gathered(all: readonly Placed[]): Placed[] {
  const kin = ({ command, figure, metric }: Placed) =>
    JSON.stringify([command, figure, metric.unit, metric.better]);
  const rows = new Map(
    groupBy(all, kin).map((group) => [kin(group[0]!), new Set(group.map(({ row }) => row))]),
  );
  return all.map((one) =>
    rows.get(kin(one))!.size > 1 ? one : { ...one, figure: '', row: one.metric.name },
  );
}

/** Parts of about one size. Rows whose names begin alike stay together where they fit. */
function partsOf(group: readonly Placed[]): Placed[][] {
  const space = new Set(group.map(({ series }) => series)).size > 1 ? 1 : 0;
  const sizeOf = (rows: readonly Placed[][]) => rows.reduce((sum, bars) => sum + bars.length + space, 0);
  const all = groupBy(group, ({ row }) => row);
  const fair = sizeOf(all) / Math.ceil(sizeOf(all) / MOST);
  const parts: Placed[][][] = [[]];
  for (const kin of groupBy(all, ([bar]) => /^[^,:]*/.exec(bar!.row)![0])) {
    const before = sizeOf(parts.at(-1)!);
    if (before >= fair || (before && before + sizeOf(kin) > MOST)) parts.push([]);
    for (const row of kin) {
      if (sizeOf([...parts.at(-1)!, row]) > MOST) parts.push([]);
      parts.at(-1)!.push(row);
    }
  }
  return parts.map((rows) => rows.flat());
}

function chartOf(bars: readonly Placed[], names: Iterable<string>, part: readonly number[] = []): KeyedChart {
  const { command, figure, metric } = bars[0]!;
  const { unit, better } = metric;
  const [index, count] = part;
  const what = [figure, unit, `${better} is better`, ...(count ? [`part ${index} of ${count}`] : [])];
  return {
    command,
    key: fileName([command, figure, unit, better, index ?? ''].join(' ')),
    title: `${command}: ${what.filter(Boolean).join(', ')}`,
    unit,
    series: [...names].map((name) => ({
      name,
      metrics: bars
        .filter(({ series }) => series === name)
        .map(({ row, metric: figures }) => ({ ...figures, name: row })),
    })),
  };
}

/** In the order of their first. */
function groupBy<T>(all: readonly T[], keyOf: (one: T) => string): T[][] {
  const groups = new Map<string, T[]>();
  for (const one of all) {
    const key = keyOf(one);
    const group = groups.get(key);
    if (group) group.push(one);
    else groups.set(key, [one]);
  }
  return [...groups.values()];
}

/** Of 255 bytes that file systems have, with an ending and what tells doubles apart. */
const MOST_NAME = 200;

/** Units as words, and nothing else that a file name had better not have. */
function fileName(key: string): string {
  const words = key.replace('×', 'times').replace('%', 'percent');
  const name = words.replace(/[^A-Za-z0-9]+/g, '-').replace(/^-|-$/g, '');
  return name.slice(0, MOST_NAME);
}
