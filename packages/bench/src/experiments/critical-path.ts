/** Bytes on the critical path of every preset (report §4.5), with the report's figures. Computed, not timed. */
import { type CriticalPath, criticalPath, DTYPE_NAMES, type Dtype, PRESETS } from '@cflow/format';
import { experiment } from '../runner/experiment.js';
import { type Measured, type Metric, metric, type Table } from '../runner/result.js';

const MIB = 2 ** 20;

/** Table 4.1: B_naive and B_critical in the report's MB, which are MiB. */
export const REPORT_PATHS: Readonly<Record<string, { readonly naive: number; readonly critical: number }>> = {
  arch1: { naive: 9, critical: 9 },
  arch2_4: { naive: 9, critical: 4.5 },
  arch2_4_sync: { naive: 9, critical: 4.5 },
  arch3: { naive: 9, critical: 9 },
  arch4: { naive: 9, critical: 9 },
  arch5: { naive: 14.06, critical: 14.06 },
};

export interface PathRow {
  readonly preset: string;
  readonly path: CriticalPath;
  readonly report?: { readonly naive: number; readonly critical: number } | undefined;
}

export const criticalPathExperiment = experiment({
  name: 'critical-path',
  describe: 'weight bytes on the critical path of every preset',
  options: (y) =>
    y.option('dtype', { choices: DTYPE_NAMES, default: 'q4_0' as Dtype, describe: 'dtype of the weights' }),
  timed: false,
  measure: async ({ dtype }) => criticalPaths(dtype),
  quick: async () => criticalPaths('q4_0'),
  results: pathMeasured,
});

export function criticalPaths(dtype: Dtype): PathRow[] {
  return Object.entries(PRESETS).map(([preset, config]) => ({
    preset,
    path: criticalPath(config, dtype),
    report: REPORT_PATHS[preset],
  }));
}

export function pathMeasured(rows: readonly PathRow[]): Measured {
  return { metrics: rows.flatMap(metricsOf), tables: [tableOf(rows)] };
}

function metricsOf({ preset, path: { nominal, disk } }: PathRow): Metric[] {
  return [
    metric(`${preset}: naive`, 'MiB', 'lower', [nominal.naive / MIB]),
    metric(`${preset}: critical`, 'MiB', 'lower', [nominal.critical / MIB]),
    metric(`${preset}: reduction`, '×', 'higher', [nominal.reduction]),
    metric(`${preset}: reduction on disk`, '×', 'higher', [disk.reduction]),
  ];
}

/** Two decimals, as in the report. */
const two = (value: number | undefined) => (value === undefined ? null : Math.round(value * 100) / 100);

function tableOf(rows: readonly PathRow[]): Table {
  return {
    title: 'Bytes per token on the critical path, MiB',
    columns: [
      '',
      'naive',
      'critical',
      'reduction',
      'report: naive',
      'report: critical',
      'on disk: reduction',
    ],
    rows: rows.map(({ preset, path: { nominal, disk }, report }) => [
      preset,
      two(nominal.naive / MIB),
      two(nominal.critical / MIB),
      two(nominal.reduction),
      two(report?.naive),
      two(report?.critical),
      two(disk.reduction),
    ]),
  };
}
