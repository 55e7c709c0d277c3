/** How a claim is decided. */
import type { Metric } from '../harness/result.js';
import type { Figures } from './figures.js';
import type { SourceName } from './sources.js';

/** `not testable here`: this machine lacks what it takes. `not measured`: nobody has run the command. */
export type Status = 'proven' | 'refuted' | 'inconclusive' | 'not testable here' | 'not measured';

/** What a row shows of its figures. */
export interface Shown {
  /** Our figures: first what decides, then what is worth knowing beside it. */
  readonly ours: string;
  /** Which of them decides, and over what. */
  readonly by: string;
  /** What a reader must know to believe it. */
  readonly why?: string | undefined;
}

export interface Verdict extends Omit<Shown, 'by'> {
  readonly status: Status;
  /** None where nothing was decided. */
  readonly by?: string | undefined;
}

export interface ScoreRow {
  readonly claim: string;
  /** Where theirs is written. */
  readonly where: string;
  readonly theirs: string;
  /** What the judge asks. */
  readonly needs: readonly SourceName[];
  /** @throws Missing where a figure is not there */
  readonly judge: (figures: Figures) => Verdict;
}

/** What a row says after its figures: what decided, and why to believe it. */
export function reasons({ by, why }: Pick<Verdict, 'by' | 'why'>): string[] {
  return [...(by === undefined ? [] : [`decided by ${by}`]), ...(why === undefined ? [] : [why])];
}

/** Where a fact decides, not a time. */
export function decided(holds: boolean, shown: Shown): Verdict {
  return { status: holds ? 'proven' : 'refuted', ...shown };
}

export type Extremes = Pick<Metric, 'min' | 'max'>;

/** Neither better nor worse. */
export const EVEN: Extremes = { min: 1, max: 1 };

/** Whether all of `a` is above all of `b`; where they reach into one another nothing is shown. */
export function above(a: Extremes, b: Extremes, shown: Shown): Verdict {
  if (a.min > b.max) return { status: 'proven', ...shown };
  if (a.max < b.min) return { status: 'refuted', ...shown };
  return unclear(b === EVEN ? 'some are better, some worse' : 'the runs of both overlap', shown);
}

/** Whether all of `a` is within a limit. */
export function within(a: Extremes, limit: number, shown: Shown): Verdict {
  if (a.max <= limit) return { status: 'proven', ...shown };
  if (a.min > limit) return { status: 'refuted', ...shown };
  return unclear('some are within, some beyond', shown);
}

function unclear(how: string, { why, ...shown }: Shown): Verdict {
  return { status: 'inconclusive', ...shown, why: why === undefined ? how : `${how}; ${why}` };
}

/** From the least of some figures to the most. */
export function extremes(values: readonly number[]): Extremes {
  return { min: Math.min(...values), max: Math.max(...values) };
}
