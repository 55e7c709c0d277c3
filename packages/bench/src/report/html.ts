/** Results as one HTML page that needs nothing else: no script, no font, no request. */
import type { Metric, Table } from '../harness/result.js';
import { chartSvg } from './charts.js';
import { chartsOf, type KeyedChart, type NamedResult } from './grouping.js';
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
    '<p class="note">Bars are medians, whiskers minimum and maximum. Figures belong to a machine and a moment.</p>',
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
