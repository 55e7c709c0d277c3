/** The report's model of overlapping (§5.14.3): net = (C + IO) / max(C (1 + τ), IO_eff), against measurements. */
import { type Metric, metric, type Table } from '../../runner/result.js';
import { rounded } from '../../runner/statistics.js';

/** Seconds per token. */
export interface CellTimes {
  /** Weights resident. */
  readonly compute: number;
  /** Without and with overlap. */
  readonly stall: number;
  readonly overlap: number;
  /** With overlap: time stalled, and time the disk was busy. */
  readonly waited: number;
  readonly busy: number;
  /** Bytes per token over disk bandwidth. */
  readonly io: number;
}

export interface ModelCheck {
  /** τ: relative slowdown of computing by reading; at least 0. */
  readonly interference: number;
  /** IO of the stalling variant: its time minus computing. */
  readonly stallIo: number;
  readonly measured: number;
  /** Prediction with IO and IO_eff from bytes and bandwidth. */
  readonly byBandwidth: number;
  /** Prediction as in the report: IO from stalling, IO_eff from the disk with overlap. */
  readonly byVariants: number;
  /** Time with overlap relative to max(C (1 + τ), IO_eff), its lower bound. */
  readonly overFloor: number;
}

export function checkModel({ compute, stall, overlap, waited, busy, io }: CellTimes): ModelCheck {
  const interference = Math.max(0, (overlap - waited) / compute - 1);
  const stallIo = Math.max(0, stall - compute);
  const slowed = compute * (1 + interference);
  return {
    interference,
    stallIo,
    measured: stall / overlap,
    byBandwidth: (compute + io) / Math.max(slowed, io),
    byVariants: (compute + stallIo) / Math.max(slowed, busy),
    overFloor: overlap / Math.max(slowed, busy),
  };
}

/** Relative error of a prediction, %. */
export const errorPercent = (predicted: number, measured: number) => 100 * (predicted / measured - 1);

/** The cell with the most similar C and IO_eff, where overlap can gain most. */
export function balanced<T>(cells: readonly T[], times: (cell: T) => CellTimes): T | undefined {
  const distance = (cell: T) => Math.abs(Math.log(times(cell).compute / times(cell).busy));
  return [...cells].sort((a, b) => distance(a) - distance(b))[0];
}

/** A budget and number of threads measured with both variants and the reference. */
export interface ModelRow {
  readonly name: string;
  readonly times: CellTimes;
  readonly check: ModelCheck;
}

export function modelMetrics({ name, check }: ModelRow, prefix: string): Metric[] {
  const { measured, byBandwidth, byVariants, overFloor } = check;
  const off = (predicted: number) => [Math.abs(errorPercent(predicted, measured))];
  return [
    metric(`${prefix}${name}: model off, reading from bandwidth`, '%', 'lower', off(byBandwidth)),
    metric(`${prefix}${name}: model off, reading from the arms`, '%', 'lower', off(byVariants)),
    metric(`${prefix}${name}: over the larger of computing and reading`, 'x', 'lower', [overFloor]),
  ];
}

const milliseconds = (seconds: number) => rounded(1e3 * seconds);

export function modelTable(rows: readonly ModelRow[], prefix: string): Table[] {
  if (rows.length === 0) return [];
  const most = balanced(rows, ({ times }) => times);
  return [
    {
      title: `${prefix}net = (C + IO) / max(C (1 + τ), IO_eff), ms a token; a: both from bytes and bandwidth; b: IO from stalling, IO_eff the disk at work; * C and IO_eff most alike`,
      columns: [
        'cell',
        'C',
        'IO a',
        'IO b',
        'IO_eff b',
        'τ %',
        'stall',
        'overlap',
        'net',
        'a',
        'off %',
        'b',
        'off %',
        'over the floor',
      ],
      rows: rows.map(({ name, times, check }) => [
        `${name}${name === most?.name ? ' *' : ''}`,
        ...[times.compute, times.io, check.stallIo, times.busy].map(milliseconds),
        rounded(100 * check.interference, 1),
        ...[times.stall, times.overlap].map(milliseconds),
        rounded(check.measured, 3),
        ...[check.byBandwidth, check.byVariants].flatMap((net) => [
          rounded(net, 3),
          rounded(errorPercent(net, check.measured), 1),
        ]),
        rounded(check.overFloor, 3),
      ]),
    },
  ];
}
