/** Claim 2: does the order of the weights on disk save misses of the first data cache? */
import { CflowError, DTYPES } from '@cflow/format';
import { requireNativeMachine } from '@cflow/runtime-native';
import { type BenchAddon, type MatvecTiming, requireBenchAddon } from '../../runner/addon.js';
import { Run } from '../../runner/experiment.js';
import { answered } from '../../runner/native.js';
import { throwIfInterrupted } from '../../runner/resources.js';
import { type Measured, metric, type Table } from '../../runner/result.js';
import { median, rounded } from '../../runner/statistics.js';
import { type CachegrindRow, crossCheck } from './cachegrind.js';
import { cacheText } from './l1d.js';
import {
  ARMS,
  type Arm,
  type Caches,
  DTYPE,
  type SimulatedRow,
  simulate,
  TIMED_ARMS,
  WORKLOADS,
  type Workload,
} from './simulate.js';

export interface L1dOptions {
  /** Empty = the best that the CPU has. */
  readonly isa: string;
  /** Simulated one by one. */
  readonly caches: readonly Caches[];
  /** Rows of each matrix that are simulated; counts are scaled to all. */
  readonly simulatedRows: number;
  /** Rows of each matrix that are timed. */
  readonly timedRows: number;
  /** Timed runs of each layout. */
  readonly runs: number;
  readonly cachegrind?: string | undefined;
}

export interface TimedRow {
  readonly workload: string;
  readonly arm: string;
  readonly rows: number;
  /** Of both layouts as tiles hold it. */
  readonly bytes: number;
  readonly timing: MatvecTiming;
}

export interface L1dReport {
  readonly isa: string;
  readonly simulated: readonly SimulatedRow[];
  readonly timed: readonly TimedRow[];
  readonly checked: readonly CachegrindRow[];
}

/** @throws CflowError UNSUPPORTED without the addon, INTERNAL if the two layouts give different numbers */
export async function benchL1d(options: L1dOptions, run = new Run()): Promise<L1dReport> {
  const addon = requireBenchAddon();
  const isa = isaOf(options.isa);
  const simulated: SimulatedRow[] = [];
  const timed: TimedRow[] = [];
  const checked: CachegrindRow[] = [];
  for (const workload of WORKLOADS) {
    run.step(`${workload.name}: caches, simulated`);
    simulated.push(...(await simulateAll(addon, workload, isa, options)));
    for (const arm of TIMED_ARMS) {
      run.step(`${workload.name}: ${arm.name}, timed`);
      timed.push(await time(addon, workload, arm, isa, options));
    }
    if (options.cachegrind === undefined) continue;
    run.step(`${workload.name}: cachegrind`);
    for (const arm of ARMS)
      checked.push(await crossCheck(addon, options.cachegrind, workload, arm, options.caches[0]!));
  }
  return { isa, simulated, timed, checked };
}

/** @throws CflowError USAGE for what the CPU has not */
function isaOf(wanted: string): string {
  const { selected, available } = requireNativeMachine().isa();
  if (wanted === '') return selected;
  if (available.includes(wanted)) return wanted;
  throw new CflowError('USAGE', `--isa ${wanted} is none of this CPU`, {
    field: 'isa',
    value: wanted,
    remedy: `one of ${available.join(', ')}`,
  });
}

async function simulateAll(addon: BenchAddon, workload: Workload, isa: string, options: L1dOptions) {
  const rows: SimulatedRow[] = [];
  for (const caches of options.caches) {
    for (const arm of ARMS) {
      throwIfInterrupted();
      for (const prefetcher of [false, true])
        rows.push(
          await simulate(addon, workload, arm, { isa, caches, prefetcher, rows: options.simulatedRows }),
        );
    }
  }
  return rows;
}

async function time(addon: BenchAddon, workload: Workload, arm: Arm, isa: string, options: L1dOptions) {
  throwIfInterrupted();
  const rows = Math.min(workload.rows, options.timedRows);
  const timing = await answered(
    addon.timeMatvec({
      dtype: DTYPES[DTYPE].id,
      arithmetic: arm.arithmetic,
      rows,
      cols: workload.cols,
      stripeRows: arm.stripeRows,
      isa,
      runs: options.runs,
    }),
  );
  if (!timing.same)
    throw new CflowError('INTERNAL', `${workload.name}, ${arm.name}: the layouts give different numbers`);
  const bytes =
    (rows * workload.cols * (DTYPES[DTYPE].groupBytes + DTYPES[DTYPE].scaleBytes)) / DTYPES[DTYPE].group;
  return { workload: workload.name, arm: arm.name, rows, bytes, timing };
}

const reportedOf = (name: string) =>
  WORKLOADS.find((workload) => workload.name === name)?.reported ?? undefined;
const cachesText = ({ first, second }: Caches) => `${cacheText(first)} + ${cacheText(second)}`;

export function l1dMeasured(report: L1dReport): Measured {
  const plain = report.simulated.filter(({ prefetcher }) => !prefetcher);
  const ratios = plain.map(({ workload, arm, caches, ratio }) => {
    const name = `${workload}, ${arm}, caches ${cachesText(caches)}: misses, row-major by tiled`;
    return metric(name, 'x', 'higher', [ratio]);
  });
  const speedups = report.timed.map(({ workload, arm, timing: { tiled, rowMajor } }) =>
    metric(
      `${workload}, ${arm}: time, row-major by tiled`,
      'x',
      'higher',
      tiled.seconds.map((seconds, i) => rowMajor.seconds[i]! / seconds),
    ),
  );
  const checks = report.checked.length ? [checkTable(report)] : [];
  return {
    metrics: [...ratios, ...speedups],
    tables: [...simulatedTables(report), timedTable(report), ...checks],
  };
}

const SIMULATED_COLUMNS = [
  'workload',
  'kernel',
  'tiled',
  'row-major',
  'of the vector',
  'ratio',
  'report',
  'tiled, prefetched',
  'row-major, prefetched',
];

/** A table for each pair of caches; the prefetcher is two columns. */
function simulatedTables({ simulated, isa }: L1dReport): Table[] {
  const sizes = [...new Set(simulated.map(({ caches }) => cachesText(caches)))];
  return sizes.map((size) => {
    const rows = simulated.filter(({ caches }) => cachesText(caches) === size);
    const [plain, prefetched] = [false, true].map((on) => rows.filter(({ prefetcher }) => prefetcher === on));
    return {
      title: `Read misses of the first data cache for a whole matrix, simulated: caches ${size}, kernels of ${isa}, q4_0`,
      columns: SIMULATED_COLUMNS,
      rows: plain!.map((row, i) => simulatedCells(row, prefetched![i]!)),
    };
  });
}

function simulatedCells(row: SimulatedRow, prefetched: SimulatedRow): Table['rows'][number] {
  const { workload, arm, tiled, rowMajor, ratio } = row;
  return [
    workload,
    arm,
    Math.round(tiled.total),
    Math.round(rowMajor.total),
    Math.round(rowMajor.vectors),
    rounded(ratio),
    reportedOf(workload)?.missRatio ?? null,
    Math.round(prefetched.tiled.total),
    Math.round(prefetched.rowMajor.total),
  ];
}

function timedTable({ timed, isa }: L1dReport): Table {
  const problem = timed[0]?.timing.problem;
  return {
    title: `Time of a product, one thread, ${isa}${problem ? ` (no miss counters: ${problem})` : ''}`,
    columns: [
      'workload',
      'kernel',
      'rows',
      'tiled ms',
      'row-major ms',
      'tiled GB/s',
      'speedup',
      'report',
      'misses counted: ratio',
    ],
    rows: timed.map(({ workload, arm, rows, bytes, timing: { tiled, rowMajor } }) => [
      workload,
      arm,
      rows,
      rounded(1000 * median(tiled.seconds), 3),
      rounded(1000 * median(rowMajor.seconds), 3),
      rounded(bytes / median(tiled.seconds) / 1e9, 1),
      rounded(median(rowMajor.seconds) / median(tiled.seconds)),
      reportedOf(workload)?.speedup ?? null,
      tiled.misses.length ? rounded(median(rowMajor.misses) / median(tiled.misses)) : null,
    ]),
  };
}

function checkTable({ checked }: L1dReport): Table {
  return {
    title: `Read misses of 256 rows by cachegrind, kernels of avx2 as compiled, beside the simulation`,
    columns: [
      'workload',
      'kernel',
      'tiled: cachegrind',
      'simulated',
      'row-major: cachegrind',
      'simulated ',
      'ratio: cachegrind',
      'simulated  ',
    ],
    rows: checked.map(({ workload, arm, cachegrind, simulated }) => [
      workload,
      arm,
      Math.round(cachegrind.tiled),
      Math.round(simulated.tiled),
      Math.round(cachegrind.rowMajor),
      Math.round(simulated.rowMajor),
      rounded(cachegrind.rowMajor / cachegrind.tiled),
      rounded(simulated.rowMajor / simulated.tiled),
    ]),
  };
}
