/** How figures decide a claim. */

import { significant } from '../report/text.js';
import type { BenchResult, Measured, Metric } from '../runner/result.js';

/** Sources of figures: experiments by name, and measurements of the scorecard itself. */
export const SOURCE_NAMES = [
  'critical-path',
  'structure',
  'kernels',
  'delays',
  'l1d',
  'storage',
  'overlap',
  'ladder',
  'cache',
  'residual',
  'peers',
] as const;
export type SourceName = (typeof SOURCE_NAMES)[number];

/** Figures of one source: measured now, or from a result file. */
export interface Evidence {
  readonly measured?: Measured | undefined;
  readonly result?: BenchResult | undefined;
  /** Why nothing was measured now. */
  readonly problem?: string | undefined;
}
export type EvidenceOf = Partial<Record<SourceName, Evidence>>;

/** `not testable here`: needs other hardware. `not measured`: the command has not been run. */
export type Status = 'proven' | 'refuted' | 'inconclusive' | 'not testable here' | 'not measured';

/** Figures as a row shows them. */
export interface Shown {
  /** Our figures: first those that decide, then additional ones. */
  readonly ours: string;
  /** Which figure decides. */
  readonly by: string;
  /** Conditions of the figure. */
  readonly why?: string | undefined;
}

export interface Verdict extends Omit<Shown, 'by'> {
  readonly status: Status;
  /** Empty if nothing was decided. */
  readonly by?: string | undefined;
}

export interface ScoreRow {
  readonly claim: string;
  /** Source of their figure. */
  readonly where: string;
  readonly theirs: string;
  /** Sources that the judge reads. */
  readonly needs: readonly SourceName[];
  /** @throws Missing if a figure is missing */
  readonly judge: (figures: Figures) => Verdict;
}

/** Text after the figures: what decided, and its conditions. */
export function reasons({ by, why }: Pick<Verdict, 'by' | 'why'>): string[] {
  return [...(by === undefined ? [] : [`decided by ${by}`]), ...(why === undefined ? [] : [why])];
}

/** For facts, not times. */
export function decided(holds: boolean, shown: Shown): Verdict {
  return { status: holds ? 'proven' : 'refuted', ...shown };
}

export type Extremes = Pick<Metric, 'min' | 'max'>;

/** A ratio of 1: neither better nor worse. */
export const EVEN: Extremes = { min: 1, max: 1 };

/** Whether all of `a` is above all of `b`; inconclusive if they overlap. */
export function above(a: Extremes, b: Extremes, shown: Shown): Verdict {
  if (a.min > b.max) return { status: 'proven', ...shown };
  if (a.max < b.min) return { status: 'refuted', ...shown };
  return unclear(b === EVEN ? 'some better, some worse' : 'the ranges overlap', shown);
}

/** Whether all of `a` is within a limit. */
export function within(a: Extremes, limit: number, shown: Shown): Verdict {
  if (a.max <= limit) return { status: 'proven', ...shown };
  if (a.min > limit) return { status: 'refuted', ...shown };
  return unclear('some within, some beyond', shown);
}

function unclear(how: string, { why, ...shown }: Shown): Verdict {
  return { status: 'inconclusive', ...shown, why: why === undefined ? how : `${how}; ${why}` };
}

/** Minimum and maximum of the medians. */
export function extremes(values: readonly number[]): Extremes {
  return { min: Math.min(...values), max: Math.max(...values) };
}

/** Thrown if a figure is missing: the claim is not decided. */
export class Missing extends Error {}

export class Figures {
  readonly #evidence: EvidenceOf;
  constructor(evidence: EvidenceOf) {
    this.#evidence = evidence;
  }

  /** Metrics of a source whose names match; at least one. @throws Missing */
  all(source: SourceName, name: RegExp): Metric[] {
    const { measured, result, problem } = this.#evidence[source] ?? {};
    const known = measured ?? result;
    if (!known) throw new Missing(problem ?? `run cflow-bench scorecard --only ${source}`);
    const found = known.metrics.filter((metric) => name.test(metric.name));
    if (found.length) return found;
    throw new Missing(`the result of ${source} has no metric that matches ${name.source}`);
  }

  /** The first match. @throws Missing */
  one(source: SourceName, name: RegExp): Metric {
    return this.all(source, name)[0]!;
  }
}

/** `1.12 to 1.36`, or one number if both are equal. */
export function rangeText(values: readonly number[], unit = ''): string {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(significant);
  return `${low === high ? low : `${low} to ${high}`}${unit}`;
}

export const medians = (metrics: readonly Metric[]) => metrics.map(({ median }) => median);
