/** Judges every claim; formats the result as a table and as terminal text. */
import { readdir } from 'node:fs/promises';
import { basename, extname, join } from 'node:path';
import { CflowError } from '@cflow/format';
import { errno } from '@cflow/format/node';
import { type BenchResult, type Measured, readResult, type Table } from '../runner/result.js';
import {
  type EvidenceOf,
  Figures,
  Missing,
  reasons,
  type ScoreRow,
  SOURCE_NAMES,
  type SourceName,
  type Verdict,
} from './judging.js';
import { ROWS } from './rows.js';

export interface Scored extends Verdict {
  readonly row: ScoreRow;
  /** Origin of the figures: `here`, or `committed` with the date. */
  readonly from: string;
}

export function score(evidence: EvidenceOf, rows: readonly ScoreRow[] = ROWS): Scored[] {
  const figures = new Figures(evidence);
  return rows.map((row) => ({ row, ...judged(row, figures), from: originOf(row, evidence) }));
}

function judged(row: ScoreRow, figures: Figures): Verdict {
  try {
    return row.judge(figures);
  } catch (error) {
    if (error instanceof Missing) return { status: 'not measured', ours: '-', why: error.message };
    throw error;
  }
}

/** Origin of the deciding source; committed figures have date and machine. */
function originOf({ needs }: ScoreRow, evidence: EvidenceOf): string {
  const [first] = needs.filter((name) => !evidence[name]?.measured);
  if (!needs.length) return '-';
  if (first === undefined) return 'here';
  const { result } = evidence[first] ?? {};
  return result ? `committed ${result.date.slice(0, 10)}, ${result.machine.cpu}` : '-';
}

/**
 * Result files of a directory by source, `<source>.json`.
 * @throws CflowError NOT_READABLE without the directory, and errors of readResult for any .json in it
 */
export async function committedResults(
  directory: string,
): Promise<Partial<Record<SourceName, BenchResult | undefined>>> {
  const files = await readdir(directory).catch((cause: unknown) => {
    throw new CflowError('NOT_READABLE', `cannot open: ${errno(cause)}`, {
      file: directory,
      remedy: 'name a directory of result files',
      cause,
    });
  });
  const results = files.filter((file) => extname(file) === '.json');
  const found = results.map(
    async (file) => [basename(file, '.json'), await readResult(join(directory, file))] as const,
  );
  const byName = new Map(await Promise.all(found));
  return Object.fromEntries(SOURCE_NAMES.map((name) => [name, byName.get(name)]));
}

const COLUMNS = ['claim', 'where', 'theirs', 'status', 'ours', 'decided by', 'from', 'why'];

export function scoreTable(scored: readonly Scored[]): Table {
  return {
    title: 'Scorecard',
    columns: COLUMNS,
    rows: scored.map(({ row, status, ours, by, from, why }) => [
      row.claim,
      row.where,
      row.theirs,
      status,
      ours,
      by ?? null,
      from,
      why ?? null,
    ]),
  };
}

/** Every metric measured here, as `source/name`, and the table. */
export function scoreMeasured(scored: readonly Scored[], evidence: EvidenceOf): Measured {
  const metrics = SOURCE_NAMES.flatMap((name) =>
    (evidence[name]?.measured?.metrics ?? []).map((metric) => ({
      ...metric,
      name: `${name}/${metric.name}`,
    })),
  );
  return { metrics, tables: [scoreTable(scored)] };
}

/** Width if output is not a terminal or its width is unknown. */
const WIDTH = 120;

/** Each claim in full, then a table with a line per claim, then the count of each status. */
export function scoreText(scored: readonly Scored[], columns = WIDTH): string {
  const states = [...new Set(scored.map(({ status }) => status))].map(
    (wanted) => `${scored.filter(({ status }) => status === wanted).length} ${wanted}`,
  );
  return [...scored.map(inFull), '', ...summary(scored, columns), '', states.join(', ')].join('\n');
}

function inFull({ row, status, ours, from, by, why }: Scored): string {
  return [
    `${row.claim} (${row.where}): ${status.toUpperCase()}`,
    `  theirs  ${row.theirs}`,
    `  ours    ${ours}${from === 'here' || from === '-' ? '' : ` [${from}]`}`,
    ...reasons({ by, why }).map((line) => `          ${line}`),
  ].join('\n');
}

/** The status column has its full width; the others share the rest of the line and are truncated. */
function summary(scored: readonly Scored[], columns: number): string[] {
  const rows = [
    ['status', 'claim', 'ours', 'theirs'],
    ...scored.map(({ row, status, ours }) => [status, row.claim, ours, row.theirs]),
  ];
  const first = Math.max(...rows.map(([status]) => status!.length));
  const rest = Math.max(columns - first, 60);
  const widths = [first, ...[0.42, 0.33, 0.25].map((share) => Math.floor(rest * share) - 2)];
  return rows.map((cells) =>
    cells
      .map((cell, column) => cut(cell, widths[column]!))
      .join('  ')
      .trimEnd(),
  );
}

function cut(text: string, width: number): string {
  return text.length > width ? `${text.slice(0, width - 1)}…` : text.padEnd(width);
}
