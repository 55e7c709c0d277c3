/** Results as one HTML page that needs nothing else: no script, no font, no request. */
import type { BenchResult, Metric, Table } from '../harness/result.js';
import { type ChartData, chartSvg } from './charts.js';
import { cellText, commandText, machineRows, significant } from './text.js';

export interface NamedResult {
  /** Of its file, without folder and extension. */
  readonly name: string;
  readonly result: BenchResult;
}

const STYLE = `
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .6rem 0 1.4rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #8884; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; }
.note { opacity: .75; }`;

/** One chart for each command and unit; results of the same command stand in it side by side. */
export function chartsOf(results: readonly NamedResult[]): (ChartData & { readonly key: string })[] {
  const charts = new Map<string, { title: string; unit: string; series: Map<string, Metric[]> }>();
  for (const { name, result } of results) {
    for (const metric of result.metrics) {
      const key = `${result.command} ${metric.unit}`;
      const title = `${result.command}: ${metric.unit || 'count'}, ${metric.better} is better`;
      const chart = charts.get(key) ?? { title, unit: metric.unit, series: new Map() };
      charts.set(key, chart);
      chart.series.set(name, [...(chart.series.get(name) ?? []), metric]);
    }
  }
  return [...charts].map(([key, { title, unit, series }]) => ({
    key: fileName(key),
    title,
    unit,
    series: [...series].map(([name, metrics]) => ({ name, metrics })),
  }));
}

/** Units as words, and nothing else that a file name had better not have. */
function fileName(key: string): string {
  const words = key.replace('×', 'times').replace('%', 'percent').replace(/ $/, ' count');
  return words.replace(/[^A-Za-z0-9]+/g, '-').replace(/^-|-$/g, '');
}

export function reportHtml(results: readonly NamedResult[]): string {
  const figures = chartsOf(results).map((chart) => `<figure>${chartSvg(chart)}</figure>`);
  return [
    '<!doctype html>',
    '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
    `<title>cflow-bench: ${escapeHtml(results.map(({ name }) => name).join(', '))}</title>`,
    `<style>${STYLE}</style></head><body>`,
    '<h1>cflow-bench</h1>',
    '<p class="note">Bars are medians, whiskers minimum and maximum. Figures belong to a machine and a moment.</p>',
    ...figures,
    ...results.flatMap(section),
    '</body></html>\n',
  ].join('\n');
}

function section({ name, result }: NamedResult): string[] {
  const { date, metrics, tables = [] } = result;
  const options = Object.entries(result.options).map(([key, value]) => `${key} ${String(value)}`);
  return [
    `<h2>${escapeHtml(name)}</h2>`,
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
