/** How a claim is decided. */
import type { Metric } from '../harness/result.js';
import type { Figures } from './figures.js';
import type { SourceName } from './sources.js';

/** `not testable here`: this machine lacks what it takes. `not measured`: nobody has run the command. */
export type Status = 'proven' | 'refuted' | 'inconclusive' | 'not testable here' | 'not measured';

export interface Verdict {
  readonly status: Status;
  /** Our figure. */
  readonly ours: string;
  /** What a reader must know to believe it. */
  readonly why?: string | undefined;
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

/** Where a fact decides, not a time. */
export function decided(holds: boolean, ours: string, why?: string): Verdict {
  return { status: holds ? 'proven' : 'refuted', ours, why };
}

export type Extremes = Pick<Metric, 'min' | 'max'>;

/** Neither better nor worse. */
export const EVEN: Extremes = { min: 1, max: 1 };

/** Whether all of `a` is above all of `b`; where they reach into one another nothing is shown. */
export function above(a: Extremes, b: Extremes, ours: string, why?: string): Verdict {
  if (a.min > b.max) return { status: 'proven', ours, why };
  if (a.max < b.min) return { status: 'refuted', ours, why };
  const overlap = b === EVEN ? 'some runs are better, some worse' : 'the runs of both overlap';
  return { status: 'inconclusive', ours, why: why === undefined ? overlap : `${overlap}; ${why}` };
}

/** From the least of some figures to the most. */
export function extremes(values: readonly number[]): Extremes {
  return { min: Math.min(...values), max: Math.max(...values) };
}
