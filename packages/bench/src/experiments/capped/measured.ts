/** Metrics and tables of a comparison under a memory cap. */

import { fileText, memoryText } from '#cli-kit/bytes.js';
import { plural } from '#cli-kit/text.js';
import { spreadText } from '../../report/text.js';
import { type Measured, type Metric, metric, type Table } from '../../runner/result.js';
import type { CappedReport, CappedRow } from './report.js';
import type { CappedRun } from './run.js';

export const OURS = 'cflow';
export const SHIPPED = 'llama.cpp as shipped';
export const MAPPED = 'llama.cpp, not repacked';

const MB = 1e6;

const runsOf = (row: CappedRow | undefined) => row?.tries.flatMap(({ run }) => run ?? []) ?? [];
const rowOf = ({ rows }: CappedReport, engine: string) => rows.find((row) => row.engine === engine);

const speed = ({ tokenSeconds }: CappedRun) =>
  tokenSeconds.length / tokenSeconds.reduce((sum, s) => sum + s, 0);

interface Figure {
  readonly name: string;
  readonly unit: string;
  readonly better: Metric['better'];
  /** Value of a run; undefined if missing. */
  readonly of: (row: CappedRow) => readonly number[];
}

const FIGURES: readonly Figure[] = [
  { name: 'decode', unit: 'tok/s', better: 'higher', of: (row) => runsOf(row).map(speed) },
  {
    name: 'read a token',
    unit: 'MB',
    better: 'lower',
    of: (row) =>
      runsOf(row)
        .flatMap(({ bytesPerToken = [] }) => bytesPerToken)
        .map((bytes) => bytes / MB),
  },
  {
    name: 'memory at most',
    unit: 'MB',
    better: 'lower',
    of: ({ tries }) => tries.map(({ group }) => group.most / MB),
  },
  {
    name: 'open',
    unit: 's',
    better: 'lower',
    of: (row) => runsOf(row).map(({ openSeconds }) => openSeconds),
  },
  { name: 'killed', unit: 'runs', better: 'lower', of: (row) => [killed(row)] },
];

const killed = ({ tries }: CappedRow) => tries.filter(({ group }) => group.killed).length;

/** `engine: figure`; `decode, times llama.cpp` of each round, and how often both select the same token. */
export function cappedMeasured(report: CappedReport): Measured {
  const figures = report.rows.map((row) => ({ row, metrics: metricsOf(row) }));
  return {
    metrics: [...figures.flatMap(({ metrics }) => metrics), ...against(report)],
    tables: [subjectTable(report, figures), conditions(report)],
  };
}

function metricsOf(row: CappedRow): Metric[] {
  return FIGURES.flatMap(({ name, unit, better, of }) => {
    const values = of(row);
    return values.length ? [metric(`${row.engine}: ${name}`, unit, better, values)] : [];
  });
}

function against(report: CappedReport): Metric[] {
  const ours = rowOf(report, OURS)!.tries;
  const theirs = rowOf(report, MAPPED)?.tries ?? [];
  const rounds = ours.flatMap(({ run }, i) => {
    const other = theirs[i]?.run;
    return run && other ? [[run, other] as const] : [];
  });
  if (!rounds.length) return [];
  const faster = rounds.map(([run, other]) => speed(run) / speed(other));
  return [
    metric('decode, times llama.cpp', '×', 'higher', faster),
    metric('same token chosen', '%', 'higher', rounds.map(agreement)),
  ];
}

/** % of the timed positions. Logits of random weights are close, so rounding decides some. */
function agreement([ours, theirs]: readonly [CappedRun, CappedRun]): number {
  const same = ours.chosen.filter((token, i) => token === theirs.chosen[i]).length;
  return (100 * same) / ours.chosen.length;
}

function subjectTable(
  { model, fileBytes, memory, warmup, tokens, threads }: CappedReport,
  figures: readonly { row: CappedRow; metrics: readonly Metric[] }[],
): Table {
  const cell = (metrics: readonly Metric[], figure: string) => {
    const found = metrics.find(({ name }) => name.endsWith(`: ${figure}`));
    return found ? spreadText(found) : null;
  };
  const measured = FIGURES.filter(({ name }) => name !== 'killed');
  return {
    title: `${model}, ${fileText(fileBytes)}, in ${memoryText(memory)}: ${tokens} pseudo-random tokens after ${warmup}, the same for both; ${plural(threads, 'thread')}`,
    columns: ['', ...measured.map(({ name, unit }) => `${name}, ${unit}`), 'killed'],
    rows: figures.map(({ row, metrics }) => [
      row.engine,
      ...measured.map(({ name }) => cell(metrics, name)),
      `${killed(row)} of ${row.tries.length}`,
    ]),
  };
}

const NOT_REPACKED =
  'weights stay memory-mapped: a preloaded symbol replaces the function that selects the repacking buffer';

function conditions(report: CappedReport): Table {
  const { rows, readAheadKib } = report;
  const backends = rows.flatMap((row) =>
    runsOf(row)
      .slice(0, 1)
      .map(({ backend }) => [row.engine, backend]),
  );
  const ahead = readAheadKib === undefined ? 'unknown' : `${readAheadKib} KiB`;
  return {
    title: 'How',
    columns: ['', 'is'],
    rows: [
      ...backends,
      [
        'not repacked',
        rowOf(report, MAPPED) ? NOT_REPACKED : 'not measured: no C compiler (cc) to build it with',
      ],
      ['memory', 'a cgroup, page cache included; the page cache of the file is empty when a run starts'],
      ['disk readahead', `${ahead}; llama.cpp’s speed depends on it, and 128 KiB favors it`],
    ],
  };
}
