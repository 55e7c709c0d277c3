/** Results as one self-contained HTML page: no script, no font, no request. */
import type { BenchResult, Metric, Table } from '../runner/result.js';
import { type ChartData, chartSvg, rangeOf } from './charts.js';
import { cellText, commandText, machineRows, significant } from './text.js';

const STYLE = `
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .6rem 0 1.4rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #8884; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; }
.note { opacity: .75; }`;

export function reportHtml(results: readonly NamedResult[]): string {
  const charts = chartsOf(results);
  return [
    '<!doctype html>',
    '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
    `<title>cflow-bench: ${escapeHtml(results.map(({ name }) => name).join(', '))}</title>`,
    `<style>${STYLE}</style></head><body>`,
    '<h1>cflow-bench</h1>',
    '<p class="note">Bars are medians, whiskers minimum and maximum. Figures hold for one machine and one moment.</p>',
    ...contents(results, charts),
    ...charts.map((chart) => `<figure id="chart-${chart.key}">${chartSvg(chart)}</figure>`),
    ...results.flatMap(section),
    '</body></html>\n',
  ].join('\n');
}

/** Links to each result and each chart. */
function contents(results: readonly NamedResult[], charts: readonly KeyedChart[]): string[] {
  const link = (id: string, text: string) => `<a href="#${id}">${escapeHtml(text)}</a>`;
  const commands = [...new Set(charts.map(({ command }) => command))];
  const chartLinks = (command: string) =>
    charts
      .filter((chart) => chart.command === command)
      .map(({ key, title }) => `<li>${link(`chart-${key}`, title.slice(command.length + 2))}</li>`);
  return [
    '<nav aria-label="Contents">',
    `<p>Results: ${results.map(({ name }, index) => link(`result-${index}`, name)).join(', ')}</p>`,
    ...commands.map(
      (command) =>
        `<details><summary>Charts of ${escapeHtml(command)}</summary><ul>${chartLinks(command).join('')}</ul></details>`,
    ),
    '</nav>',
  ];
}

function section({ name, result }: NamedResult, index: number): string[] {
  const { date, metrics, tables = [] } = result;
  const options = Object.entries(result.options).map(([key, value]) => `${key} ${String(value)}`);
  return [
    `<h2 id="result-${index}">${escapeHtml(name)}</h2>`,
    `<p><code>${escapeHtml(commandText(result))}</code>, ${escapeHtml([date, ...options].join(', '))}</p>`,
    htmlTable({ title: 'Machine', columns: ['', ''], rows: machineRows(result.machine) }),
    htmlTable(metricTable(metrics)),
    ...tables.map(htmlTable),
  ];
}

function metricTable(metrics: readonly Metric[]): Table {
  return {
    title: 'Metrics',
    columns: ['', 'unit', 'better', 'median', 'min', 'max', 'runs'],
    rows: metrics.map(({ name, unit, better, median, min, max, runs }) => [
      name,
      unit,
      better,
      ...[median, min, max].map(significant),
      runs.length,
    ]),
  };
}

function htmlTable({ title, columns, rows }: Table): string {
  const cells = (tag: string, row: readonly (string | number | null)[]) =>
    `<tr>${row.map((cell) => `<${tag}>${escapeHtml(cellText(cell))}</${tag}>`).join('')}</tr>`;
  const head = columns.some(Boolean) ? cells('th', columns) : '';
  return `<h3>${escapeHtml(title)}</h3><table>${head}${rows.map((row) => cells('td', row)).join('')}</table>`;
}

export function escapeHtml(text: string): string {
  const entities: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' };
  return text.replace(/[&<>"]/g, (char) => entities[char]!);
}

export interface NamedResult {
  /** File name without directory and extension. */
  readonly name: string;
  readonly result: BenchResult;
}

export interface KeyedChart extends ChartData {
  /** Unique in the report, and valid as a file name. */
  readonly key: string;
  readonly command: string;
}

/** A metric of a chart: `cflow: decode` is the row `cflow` of the figure `decode`. */
interface Placed {
  readonly command: string;
  readonly series: string;
  readonly figure: string;
  readonly row: string;
  readonly metric: Metric;
}

/** Maximum bars and spaces of a chart: more do not fit on a screen. */
const MOST = 48;

/**
 * One chart for each command, figure, unit and direction, so that its title applies to every bar. Figures of one row
 * share a chart by unit and direction. Results of one command are side by side; long charts are split.
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

/** A figure with a single row joins the others of its command, under its full name. */
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

/** Splits into parts of similar size. Rows with a common prefix stay together if they fit. */
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

/** Groups, in order of first occurrence. */
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

/** File systems allow 255 bytes; leaves room for extension and counter. */
const MOST_NAME = 200;

/** Spells out units and removes characters unsafe in file names. */
function fileName(key: string): string {
  const words = key.replace('×', 'times').replace('%', 'percent');
  const name = words.replace(/[^A-Za-z0-9]+/g, '-').replace(/^-|-$/g, '');
  return name.slice(0, MOST_NAME);
}
