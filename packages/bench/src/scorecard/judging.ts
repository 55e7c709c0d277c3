/** How a claim is decided, and by which figures. */

import { significant } from '../report/text.js';
import type { BenchResult, Measured, Metric } from '../runner/result.js';

/** Where figures come from: experiments, by name, and sources of the scorecard's own. */
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

/** Figures of one source: measured now, or of the result file. */
export interface Evidence {
  readonly measured?: Measured | undefined;
  readonly result?: BenchResult | undefined;
  /** Why nothing was measured now. */
  readonly problem?: string | undefined;
}
export type EvidenceOf = Partial<Record<SourceName, Evidence>>;

/** `not testable here`: needs other hardware. `not measured`: the command has not been run. */
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

/** Thrown by a judge without its figure: the claim is neither proven nor refuted. */
export class Missing extends Error {}

export class Figures {
  readonly #evidence: EvidenceOf;
  constructor(evidence: EvidenceOf) {
    this.#evidence = evidence;
  }

  /** Those of a source whose name matches; at least one. @throws Missing */
  all(source: SourceName, name: RegExp): Metric[] {
    const { measured, result, problem } = this.#evidence[source] ?? {};
    const known = measured ?? result;
    if (!known) throw new Missing(problem ?? `run cflow-bench scorecard --only ${source}`);
    const found = known.metrics.filter((metric) => name.test(metric.name));
    if (found.length) return found;
    throw new Missing(`what ${source} measured has no figure called ${name.source}`);
  }

  /** The first of them. @throws Missing */
  one(source: SourceName, name: RegExp): Metric {
    return this.all(source, name)[0]!;
  }
}

/** `1.12 to 1.36`, or one number where both are alike. */
export function rangeText(values: readonly number[], unit = ''): string {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(significant);
  return `${low === high ? low : `${low} to ${high}`}${unit}`;
}

export const medians = (metrics: readonly Metric[]) => metrics.map(({ median }) => median);
