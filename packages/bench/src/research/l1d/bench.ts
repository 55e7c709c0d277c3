/** Claim 2: does the order of the weights on disk reduce L1 data cache misses? */
import { CflowError, DTYPES } from '@cflow/format';
import { requireNativeMachine } from '@cflow/runtime-native/internal/native/machine.js';
import { type BenchAddon, type MatvecTiming, requireBenchAddon } from '../../runner/addon.js';
import { Run } from '../../runner/experiment.js';
import { answered } from '../../runner/native.js';
import { throwIfInterrupted } from '../../runner/resources.js';
import { type Measured, metric, type Table } from '../../runner/result.js';
import { median, rounded } from '../../runner/statistics.js';
import { type CachegrindRow, crossCheck } from './cachegrind.js';
import {
  type Caches,
  cacheText,
  DTYPE,
  KERNELS,
  type Kernel,
  type SimulatedRow,
  simulate,
  TIMED_KERNELS,
  WORKLOADS,
  type Workload,
} from './simulate.js';

export interface L1dOptions {
  /** Empty: the best of the CPU. */
  readonly isa: string;
  /** Cache geometries to simulate. */
  readonly caches: readonly Caches[];
  /** Simulated rows of each matrix; counts are scaled to all rows. */
  readonly simulatedRows: number;
  /** Timed rows of each matrix. */
  readonly timedRows: number;
  /** Timed runs of each layout. */
  readonly runs: number;
  readonly cachegrind?: string | undefined;
}

export interface TimedRow {
  readonly workload: string;
  readonly kernel: string;
  readonly rows: number;
  /** Bytes of the tiled layout, used for both. */
  readonly bytes: number;
  readonly timing: MatvecTiming;
}

export interface L1dReport {
  readonly isa: string;
  readonly simulated: readonly SimulatedRow[];
  readonly timed: readonly TimedRow[];
  readonly checked: readonly CachegrindRow[];
}

/** @throws CflowError UNSUPPORTED without the addon, INTERNAL if the layouts give different results */
export async function benchL1d(options: L1dOptions, run = new Run()): Promise<L1dReport> {
  const addon = requireBenchAddon();
  const isa = isaOf(options.isa);
  const simulated: SimulatedRow[] = [];
  const timed: TimedRow[] = [];
  const checked: CachegrindRow[] = [];
  for (const workload of WORKLOADS) {
    run.step(`${workload.name}: caches, simulated`);
    simulated.push(...(await simulateAll(addon, workload, isa, options)));
    for (const kernel of TIMED_KERNELS) {
      run.step(`${workload.name}: ${kernel.name}, timed`);
      timed.push(await time(addon, workload, kernel, isa, options));
    }
    if (options.cachegrind === undefined) continue;
    run.step(`${workload.name}: cachegrind`);
    for (const kernel of KERNELS)
      checked.push(await crossCheck(addon, options.cachegrind, workload, kernel, options.caches[0]!));
  }
  return { isa, simulated, timed, checked };
}

/** @throws CflowError USAGE if the CPU lacks it */
function isaOf(wanted: string): string {
  const { selected, available } = requireNativeMachine().isa();
  if (wanted === '') return selected;
  if (available.includes(wanted)) return wanted;
  throw new CflowError('USAGE', `--isa ${wanted} is not available on this CPU`, {
    field: 'isa',
    value: wanted,
    remedy: `one of ${available.join(', ')}`,
  });
}

async function simulateAll(addon: BenchAddon, workload: Workload, isa: string, options: L1dOptions) {
  const rows: SimulatedRow[] = [];
  for (const caches of options.caches) {
    for (const kernel of KERNELS) {
      throwIfInterrupted();
      for (const prefetcher of [false, true])
        rows.push(
          await simulate(addon, workload, kernel, { isa, caches, prefetcher, rows: options.simulatedRows }),
        );
    }
  }
  return rows;
}

async function time(addon: BenchAddon, workload: Workload, kernel: Kernel, isa: string, options: L1dOptions) {
  throwIfInterrupted();
  const rows = Math.min(workload.rows, options.timedRows);
  const timing = await answered(
    addon.timeMatvec({
      dtype: DTYPES[DTYPE].id,
      arithmetic: kernel.arithmetic,
      rows,
      cols: workload.cols,
      stripeRows: kernel.stripeRows,
      isa,
      runs: options.runs,
    }),
  );
  if (!timing.same)
    throw new CflowError('INTERNAL', `${workload.name}, ${kernel.name}: the layouts give different results`);
  const bytes =
    (rows * workload.cols * (DTYPES[DTYPE].groupBytes + DTYPES[DTYPE].scaleBytes)) / DTYPES[DTYPE].group;
  return { workload: workload.name, kernel: kernel.name, rows, bytes, timing };
}

const reportedOf = (name: string) =>
  WORKLOADS.find((workload) => workload.name === name)?.reported ?? undefined;
const cachesText = ({ first, second }: Caches) => `${cacheText(first)} + ${cacheText(second)}`;

export function l1dMeasured(report: L1dReport): Measured {
  const plain = report.simulated.filter(({ prefetcher }) => !prefetcher);
  const ratios = plain.map(({ workload, kernel, caches, ratio }) => {
    const name = `${workload}, ${kernel}, caches ${cachesText(caches)}: misses, row-major by tiled`;
    return metric(name, 'x', 'higher', [ratio]);
  });
  const speedups = report.timed.map(({ workload, kernel, timing: { tiled, rowMajor } }) =>
    metric(
      `${workload}, ${kernel}: time, row-major by tiled`,
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

/** A table per cache geometry; with and without prefetcher are columns. */
function simulatedTables({ simulated, isa }: L1dReport): Table[] {
  const sizes = [...new Set(simulated.map(({ caches }) => cachesText(caches)))];
  return sizes.map((size) => {
    const rows = simulated.filter(({ caches }) => cachesText(caches) === size);
    const [plain, prefetched] = [false, true].map((on) => rows.filter(({ prefetcher }) => prefetcher === on));
    return {
      title: `L1 data cache read misses for a whole matrix, simulated: caches ${size}, kernels of ${isa}, q4_0`,
      columns: SIMULATED_COLUMNS,
      rows: plain!.map((row, i) => simulatedCells(row, prefetched![i]!)),
    };
  });
}

function simulatedCells(row: SimulatedRow, prefetched: SimulatedRow): Table['rows'][number] {
  const { workload, kernel, tiled, rowMajor, ratio } = row;
  return [
    workload,
    kernel,
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
    rows: timed.map(({ workload, kernel, rows, bytes, timing: { tiled, rowMajor } }) => [
      workload,
      kernel,
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
    title: `Read misses of 256 rows by cachegrind (compiled avx2 kernels) and by the simulation`,
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
    rows: checked.map(({ workload, kernel, cachegrind, simulated }) => [
      workload,
      kernel,
      Math.round(cachegrind.tiled),
      Math.round(simulated.tiled),
      Math.round(cachegrind.rowMajor),
      Math.round(simulated.rowMajor),
      rounded(cachegrind.rowMajor / cachegrind.tiled),
      rounded(simulated.rowMajor / simulated.tiled),
    ]),
  };
}
