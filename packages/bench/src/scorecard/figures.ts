/** Metrics by source and name, as a judge asks for them. */
import type { Metric } from '../harness/result.js';
import { significant } from '../report/text.js';
import type { EvidenceOf, SourceName } from './sources.js';

/** Thrown by a judge that lacks a figure: then nothing is proven and nothing refuted. */
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
