/** The generated parts of docs/benchmarks.md. */
import type { BenchResult, Metric, Table } from '../runner/result.js';
import { reasons, SOURCE_NAMES, type SourceName } from '../scorecard/judging.js';
import { score } from '../scorecard/score.js';
import { cellText, commandText, machineRows, spreadText } from './text.js';

/** By the name of the file. */
export type NamedResults = Readonly<Record<string, BenchResult>>;

/** Parts by name; the page has a place for each. */
export function benchmarkSections(results: NamedResults): Record<string, string> {
  const sourced = new Set<string>(SOURCE_NAMES);
  const known: readonly string[] = SOURCE_NAMES.filter((name) => results[name]);
  const others = Object.keys(results).filter((name) => !sourced.has(name));
  return {
    scorecard: scorecardPart(results),
    results: [...known, ...others.sort()].map((name) => resultPart(name, results[name]!)).join('\n\n'),
  };
}

function scorecardPart(results: NamedResults): string {
  const named = SOURCE_NAMES.filter((name: SourceName) => results[name]);
  const scored = score(Object.fromEntries(named.map((name) => [name, { result: results[name] }])));
  const rows = scored.map(({ row, status, ours, by, why }) => [
    `${row.claim} (${row.where})`,
    row.theirs,
    status === 'proven' || status === 'refuted' ? `**${status}**` : status,
    [ours, ...reasons({ by, why })].join('; '),
  ]);
  return markdownTable(['claim', 'theirs', 'here', 'our figure'], rows);
}

function resultPart(name: string, result: BenchResult): string {
  const { date, machine, metrics, tables = [] } = result;
  const facts = machineRows(machine).map(([key, value]) => `${key}: ${value}`);
  return [
    `### ${name}`,
    `\`${commandText(result)}\`, ${date.slice(0, 10)}. ${facts.join('; ')}.`,
    ...(showMetrics(result) ? [] : [metricsPart(metrics)]),
    ...tables.map(tablePart),
  ].join('\n\n');
}

/** Whether its tables say what the metrics say, which then need no list: those with fewer cells only describe. */
function showMetrics({ metrics, tables = [] }: BenchResult): boolean {
  const cells = tables.flatMap(({ rows }) => rows.flatMap(([, ...rest]) => rest));
  return cells.filter((cell) => cell !== null).length >= metrics.length;
}

function metricsPart(metrics: readonly Metric[]): string {
  return markdownTable(
    ['', 'median (min–max)', 'unit'],
    metrics.map((metric) => [metric.name, spreadText(metric), metric.unit]),
  );
}

function tablePart({ title, columns, rows }: Table): string {
  return `${title}:\n\n${markdownTable(
    columns,
    rows.map((row) => row.map(cellText)),
  )}`;
}

/** First column to the left; bars and line ends in cells made harmless. */
function markdownTable(columns: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) =>
    `| ${cells.map((cell) => cell.replace(/\|/g, '\\|').replace(/\s+/g, ' ')).join(' | ')} |`;
  return [line(columns), `|${columns.map(() => '---|').join('')}`, ...rows.map(line)].join('\n');
}
