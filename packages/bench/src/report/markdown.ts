/** The generated parts of docs/benchmarks.md. */

import { PEER_MODELS } from '../experiments/peers/peers.js';
import type { BenchResult, Metric, Table } from '../runner/result.js';
import { medians, rangeText, reasons, SOURCE_NAMES, type SourceName } from '../scorecard/judging.js';
import { score } from '../scorecard/score.js';
import { cellText, commandText, machineRows, significant, spreadText } from './text.js';

/** Results by file name. */
export type NamedResults = Readonly<Record<string, BenchResult>>;

/** Generated sections by name. */
export function benchmarkSections(results: NamedResults): Record<string, string> {
  const sourced = new Set<string>(SOURCE_NAMES);
  const known: readonly string[] = SOURCE_NAMES.filter((name) => results[name]);
  const others = Object.keys(results).filter((name) => !sourced.has(name));
  return {
    scorecard: scorecardPart(results),
    disk: diskTable(results),
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

/** Speed against llama.cpp on the same weights, for the README; from the result of `peers`. */
export function speedTable({ peers }: NamedResults): string {
  const known = new Map(peers?.metrics.map((metric) => [metric.name, metric]));
  const cells = (model: string, figure: string) =>
    [
      `${model} cflow: ${figure}`,
      `${model} llama.cpp: ${figure}`,
      `${model}: ${figure}, times llama.cpp`,
    ].map((name) => (known.has(name) ? significant(known.get(name)!.median) : ''));
  const rows = PEER_MODELS.map((model) => {
    const figures = ['decode', 'prefill', 'peak memory'].map((figure) => {
      const [ours, theirs, ratio] = cells(model, figure);
      return ours && theirs && ratio ? `${ours} / ${theirs} (${ratio} ×)` : '-';
    });
    return [model, ...figures];
  });
  const columns = ['cflow / llama.cpp (ratio)', 'decode, tokens/s', 'prompt, tokens/s', 'peak memory, MB'];
  return markdownTable(columns, rows);
}

/** Figures of reading experts from disk: range of medians over the budgets of each result. */
function diskTable(results: NamedResults): string {
  const range = (name: string, pattern: RegExp, unit: string) => {
    const found = results[name]?.metrics.filter((metric) => pattern.test(metric.name)) ?? [];
    return found.length ? [rangeText(medians(found), unit), `\`${name}\``] : ['not measured', `\`${name}\``];
  };
  return markdownTable(
    ['figure', 'value', 'result'],
    [
      ['gain of overlap over stall, with expert delay', ...range('overlap', /: overlap by stall$/, ' ×')],
      ['the same without delay', ...range('overlap-undelayed', /: overlap by stall$/, ' ×')],
      [
        'gain of prediction over stall, without delay',
        ...range('overlap-undelayed', /: predict by stall$/, ' ×'),
      ],
      [
        'overlap over max(C, IO_eff), with expert delay',
        ...range('overlap', /: over the larger of computing and reading$/, ' ×'),
      ],
      [
        'error of the report’s model, with expert delay',
        ...range('overlap', /: model off, reading from bandwidth$/, ' %'),
      ],
      [
        'decode under a memory cap, relative to llama.cpp',
        ...range('capped', /^decode, times llama.cpp$/, ' ×'),
      ],
      ['prefetch on relative to off', ...range('storage', /: prefetch 1 by 0$/, ' ×')],
      ['.vflow relative to .cflow', ...range('storage', /: \.vflow by \.cflow$/, ' ×')],
    ],
  );
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

/** Whether the tables cover the metrics, which then need no list; tables with fewer cells only describe. */
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

/** First column left-aligned; escapes pipes and line breaks in cells. */
function markdownTable(columns: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) =>
    `| ${cells.map((cell) => cell.replace(/\|/g, '\\|').replace(/\s+/g, ' ')).join(' | ')} |`;
  return [line(columns), `|${columns.map(() => '---|').join('')}`, ...rows.map(line)].join('\n');
}
