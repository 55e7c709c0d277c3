/** The scorecard on a terminal. */
import { reasons } from './judging.js';
import type { Scored } from './scorecard.js';

/** Of a terminal that does not say how wide it is, and of what is no terminal. */
const WIDTH = 120;

/** Each claim in full, then a table of a line each, then how many are proven, refuted and so on. */
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

/** Statuses as wide as they are; the others share the rest of the line and are cut. */
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
