/** The report's model of overlapping (§5.14.3): net = (C + IO) / max(C (1 + τ), IO_eff), against what was measured. */

/** Seconds a token. */
export interface CellTimes {
  /** All weights in memory. */
  readonly compute: number;
  /** The arms that wait for every read, and that do not. */
  readonly stall: number;
  readonly overlap: number;
  /** Of the overlapping arm: waiting for the disk all the same, and the disk at work. */
  readonly waited: number;
  readonly busy: number;
  /** Bytes of a token over the bandwidth of the disk. */
  readonly io: number;
}

export interface ModelCheck {
  /** τ, by which reading slows computing; not below 0. */
  readonly interference: number;
  /** Of the arm that waits: what computing does not explain. */
  readonly stallIo: number;
  readonly measured: number;
  /** IO and IO_eff from bytes and bandwidth. */
  readonly byBandwidth: number;
  /** As in the report: IO from the arm that waits, IO_eff from the disk as it was when it did not. */
  readonly byArms: number;
  /** The overlapping arm over max(C (1 + τ), IO_eff), the least that it can take. */
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
    byArms: (compute + stallIo) / Math.max(slowed, busy),
    overFloor: overlap / Math.max(slowed, busy),
  };
}

/** By how much a prediction is off, %. */
export const errorPercent = (predicted: number, measured: number) => 100 * (predicted / measured - 1);

/** The one of several whose computing and reading are most alike: where overlapping can gain most. */
export function balanced<T>(cells: readonly T[], times: (cell: T) => CellTimes): T | undefined {
  const distance = (cell: T) => Math.abs(Math.log(times(cell).compute / times(cell).busy));
  return [...cells].sort((a, b) => distance(a) - distance(b))[0];
}
