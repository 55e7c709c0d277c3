/** Metrics and tables of `overlap` and its ladder. */
import { plural } from '#cli-kit/text.js';
import { type Measured, type Metric, metric, type Table } from '../../runner/result.js';
import { median, rounded, spread } from '../../runner/statistics.js';
import type { CellRow, OverlapReport } from './bench.js';
import { RESIDENT } from './cells.js';
import { type CellTimes, checkModel, type ModelRow, modelMetrics, modelTable } from './model.js';
import type { OverlapRun } from './run.js';

interface Figure {
  readonly name: string;
  readonly unit: string;
  readonly better: Metric['better'];
  /** Value of one run; undefined if missing. */
  readonly of: (run: OverlapRun, row: CellRow) => number | undefined;
}

const sum = (values: readonly number[]) => values.reduce((a, b) => a + b, 0);
/** Percentile of sorted values. */
const percentile = (values: readonly number[], share: number) =>
  [...values].sort((a, b) => a - b)[Math.max(0, Math.ceil(share * values.length) - 1)]!;

export const tokenTime = ({ tokenSeconds }: OverlapRun) => sum(tokenSeconds) / tokenSeconds.length;

/** When stalling, one thread waits for all; otherwise each thread waits separately. */
export function waitedPerToken({ tiers, tokenSeconds }: OverlapRun, { cell }: CellRow): number {
  const waiters = cell.variant.options.transfers === 'stall' ? 1 : cell.threads;
  return tiers.stallSeconds / waiters / tokenSeconds.length;
}

const fetched = (row: CellRow, value: number) => (row.cell.variant === RESIDENT ? undefined : value);

const FIGURES: readonly Figure[] = [
  { name: 'decode', unit: 'tok/s', better: 'higher', of: (run) => 1 / tokenTime(run) },
  { name: 'first token', unit: 'ms', better: 'lower', of: (run) => 1e3 * run.firstTokenSeconds },
  { name: 'token p50', unit: 'ms', better: 'lower', of: (run) => 1e3 * percentile(run.tokenSeconds, 0.5) },
  { name: 'token p99', unit: 'ms', better: 'lower', of: (run) => 1e3 * percentile(run.tokenSeconds, 0.99) },
  {
    name: 'stalled',
    unit: '%',
    better: 'lower',
    of: (run, row) => fetched(row, (100 * waitedPerToken(run, row)) / tokenTime(run)),
  },
  {
    name: 'read a token',
    unit: 'MB',
    better: 'lower',
    of: (run, row) => fetched(row, run.tiers.bytesRead / run.tokenSeconds.length / 1e6),
  },
  {
    name: 'disk',
    unit: 'GB/s',
    better: 'higher',
    of: ({ tiers }, row) => fetched(row, tiers.busySeconds && tiers.bytesRead / tiers.busySeconds / 1e9),
  },
  {
    name: 'weights from memory',
    unit: 'GB/s',
    better: 'higher',
    of: (run) => run.weightBytes / sum(run.tokenSeconds) / 1e9,
  },
  {
    name: 'found in memory',
    unit: '%',
    better: 'higher',
    of: ({ tiers: { hits, predicted, misses } }, row) =>
      fetched(row, (100 * hits) / Math.max(1, hits + predicted + misses)),
  },
  { name: 'peak memory', unit: 'MB', better: 'lower', of: (run) => run.peakBytes / 1e6 },
];

const runsOf = ({ runs }: CellRow) => runs.flatMap(({ run }) => run ?? []);

export function overlapMeasured(report: OverlapReport, prefix = ''): Measured {
  const { rows, diskLimits } = report;
  const groups = groupsOf(rows);
  const metrics = [
    ...rows.flatMap((row) => rowMetrics(row, prefix)),
    ...groups.flatMap((group) => groupMetrics(group, prefix)),
    metric(`${prefix}disk, random blocks: limit`, 'GB/s', 'higher', diskLimits),
  ];
  const checks = checksOf(groups, diskLimits);
  const predictions = checks.flatMap((row) => modelMetrics(row, prefix));
  const tables = [variantTable(report, metrics, prefix), memoryTable(report), ...modelTable(checks, prefix)];
  return { metrics: [...metrics, ...predictions], tables };
}

function rowMetrics(row: CellRow, prefix: string): Metric[] {
  const runs = runsOf(row);
  return FIGURES.flatMap(({ name, unit, better, of }) => {
    const values = runs.map((run) => of(run, row)).filter((value) => value !== undefined);
    return values.length ? [metric(`${prefix}${row.cell.name}: ${name}`, unit, better, values)] : [];
  });
}

/** Variants with the same budget and number of threads. */
interface Group {
  readonly name: string;
  readonly reference: CellRow | undefined;
  readonly variants: readonly CellRow[];
}

function groupsOf(rows: readonly CellRow[]): Group[] {
  const groups = new Map<string, CellRow[]>();
  for (const row of rows) {
    const { budget, threads } = row.cell;
    if (!budget || runsOf(row).length === 0) continue;
    const name = `${budget.name}, ${plural(threads, 'thread')}`;
    groups.set(name, [...(groups.get(name) ?? []), row]);
  }
  return [...groups].map(([name, variants]) => ({
    name,
    variants,
    reference: referenceOf(rows, variants[0]!),
  }));
}

const referenceOf = (rows: readonly CellRow[], { cell }: CellRow) =>
  rows.find((row) => row.cell.variant === RESIDENT && row.cell.threads === cell.threads);

const armNamed = ({ variants }: Group, name: string) =>
  variants.find(({ cell }) => cell.variant.name === name);

/** Ratios to the stalling variant, run by run, and to the reference. */
function groupMetrics(group: Group, prefix: string): Metric[] {
  const stall = armNamed(group, 'stall');
  const name = (row: CellRow) => `${prefix}${group.name}: ${row.cell.variant.name}`;
  const utilization = group.reference
    ? group.variants.map((row) => {
        const compute = medianTime(group.reference!);
        const runs = runsOf(row).map((run) => (100 * compute) / tokenTime(run));
        return metric(`${name(row)}: computing`, '%', 'higher', runs);
      })
    : [];
  if (!stall) return utilization;
  return [
    ...utilization,
    ...group.variants.filter((row) => row !== stall).flatMap((row) => gains(row, stall, name(row))),
  ];
}

function gains(row: CellRow, stall: CellRow, name: string): Metric[] {
  const waits = runsOf(stall);
  const pairs = runsOf(row).flatMap((run, i) => (waits[i] ? [[run, waits[i]] as const] : []));
  if (pairs.length === 0) return [];
  const faster = pairs.map(([run, wait]) => tokenTime(wait) / tokenTime(run));
  const hidden = pairs.map(
    ([run, wait]) => 100 * (1 - waitedPerToken(run, row) / waitedPerToken(wait, stall)),
  );
  return [
    metric(`${name} by stall`, 'x', 'higher', faster),
    metric(`${name}: waiting that is hidden`, '%', 'higher', hidden),
  ];
}

const medianOf = (row: CellRow, of: (run: OverlapRun) => number) => median(runsOf(row).map(of));
const medianTime = (row: CellRow) => medianOf(row, tokenTime);

/** Cells with both variants and the reference. */
function checksOf(groups: readonly Group[], diskLimits: readonly number[]): ModelRow[] {
  const limit = 1e9 * median(diskLimits);
  return groups.flatMap((group) => {
    const [stall, overlap] = [armNamed(group, 'stall'), armNamed(group, 'overlap')];
    if (!stall || !overlap || !group.reference) return [];
    const times: CellTimes = {
      compute: medianTime(group.reference),
      stall: medianTime(stall),
      overlap: medianTime(overlap),
      waited: medianOf(overlap, (run) => waitedPerToken(run, overlap)),
      busy: medianOf(overlap, (run) => run.tiers.busySeconds / run.tokenSeconds.length),
      io: medianOf(stall, (run) => run.tiers.bytesRead / run.tokenSeconds.length) / limit,
    };
    return [{ name: group.name, times, check: checkModel(times) }];
  });
}

const COLUMNS = [
  'decode',
  'first token',
  'token p50',
  'token p99',
  'stalled',
  'read a token',
  'disk',
  'found in memory',
];

function variantTable(
  { model, tokens, warmup, rows }: OverlapReport,
  metrics: readonly Metric[],
  prefix: string,
): Table {
  const known = new Map(metrics.map((one) => [one.name, one]));
  const units = new Map(FIGURES.map(({ name, unit }) => [name, unit]));
  return {
    title: `${prefix}${model}: ${tokens} pseudo-random tokens after ${warmup}, the same for every variant; logits equal in every bit`,
    columns: ['cell', ...COLUMNS.map((name) => `${name}, ${units.get(name)}`)],
    rows: rows.map(({ cell }) => [
      cell.name,
      ...COLUMNS.map((name) => {
        const found = known.get(`${prefix}${cell.name}: ${name}`);
        return found ? rounded(found.median) : null;
      }),
    ]),
  };
}

const MB = 1e6;

function memoryTable({ rows, noGroup }: OverlapReport): Table {
  const capped = noGroup ? `no limit: ${noGroup}` : 'in a cgroup of budget + 10 %, page cache included';
  return {
    title: `Peak memory of all runs, MB; ${capped}`,
    columns: ['cell', 'budget', 'experts in memory', 'process', 'cgroup', 'killed'],
    rows: rows
      .filter(({ memory }) => memory !== undefined)
      .map((row) => {
        const uses = row.runs.flatMap(({ group }) => group ?? []);
        const [first] = runsOf(row);
        const peak = first && spread(runsOf(row).map(({ peakBytes }) => peakBytes)).max / MB;
        return [
          row.cell.name,
          rounded(row.memory! / MB, 1),
          first?.how.slots ?? null,
          peak === undefined ? null : rounded(peak, 1),
          uses.length ? rounded(Math.max(...uses.map(({ most }) => most)) / MB, 1) : null,
          uses.length ? uses.filter(({ killed }) => killed).length : null,
        ];
      }),
  };
}

export function ladderMeasured({ model, rows }: OverlapReport): Measured {
  const rungs = rows.filter(({ cell }) => cell.budget);
  const times = rungs.map(({ runs }) => runs.flatMap(({ run }) => (run ? [tokenTime(run)] : [])));
  const over = (i: number, base: number) =>
    times[i]!.flatMap((time, run) => (times[base]![run] ? [times[base]![run]! / time] : []));
  const metrics = rungs.flatMap(({ cell }, i) => [
    metric(
      `ladder: ${cell.variant.name}: decode`,
      'tok/s',
      'higher',
      times[i]!.map((time) => 1 / time),
    ),
    metric(`ladder: ${cell.variant.name}: over the first`, 'x', 'higher', over(i, 0)),
  ]);
  return { metrics, tables: [ladderTable(model, rungs, times)] };
}

function ladderTable(
  model: string,
  rungs: OverlapReport['rows'],
  times: readonly (readonly number[])[],
): Table {
  const middle = times.map((runs) => median(runs));
  const { budget, threads } = rungs[0]!.cell;
  return {
    title: `Ladder, ${model}, ${budget!.name}, ${plural(threads, 'thread')}: ms per token`,
    columns: ['rung', 'median', 'min', 'max', 'over the one before', 'over the first'],
    rows: rungs.map(({ cell }, i) => {
      const { min, max } = spread(times[i]!);
      const factors = [middle[Math.max(0, i - 1)]! / middle[i]!, middle[0]! / middle[i]!];
      const numbers = [...[middle[i]!, min, max].map((seconds) => 1e3 * seconds), ...factors];
      return [cell.variant.name, ...numbers.map((value) => Number(value.toFixed(2)))];
    }),
  };
}
