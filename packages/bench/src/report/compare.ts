/** Compares two results of one command, metric by metric. */
import { CflowError } from '@cflow/format';
import type { Argv, CommandModule } from 'yargs';
import { type Builder, print } from '../runner/options.js';
import { type BenchResult, type Metric, readResult } from '../runner/result.js';
import { leftFirst, significant } from './text.js';

export interface MetricChange {
  readonly name: string;
  readonly unit: string;
  readonly before: number;
  readonly after: number;
  /** Relative change of the median; positive is better. */
  readonly gain: number;
  /** Worse by more than the threshold. */
  readonly worse: boolean;
  /** Whether the ranges of the runs overlap: then it may be noise. */
  readonly overlap: boolean;
}

export interface Comparison {
  readonly threshold: number;
  readonly changes: readonly MetricChange[];
  /** Metrics that only one of the two has. */
  readonly missing: readonly string[];
  readonly added: readonly string[];
  /** Other differences that may make the figures incomparable: machine, options. */
  readonly differences: readonly string[];
  /** Whether any metric is worse by more than the threshold. */
  readonly worse: boolean;
}

/**
 * @param threshold relative to the median, e.g. 0.05
 * @throws CflowError USAGE if the two share no metric
 */
export function compareResults(before: BenchResult, after: BenchResult, threshold: number): Comparison {
  const later = new Map(after.metrics.map((metric) => [metric.name, metric]));
  const earlier = new Set(before.metrics.map(({ name }) => name));
  const changes = before.metrics.flatMap((metric) => {
    const other = later.get(metric.name);
    return other && other.unit === metric.unit ? [changeOf(metric, other, threshold)] : [];
  });
  if (!changes.length) {
    throw new CflowError('USAGE', `${before.command} and ${after.command} have no metric in common`, {
      remedy: 'compare two results of one command',
    });
  }
  return {
    threshold,
    changes,
    missing: [...earlier].filter((name) => !later.has(name)),
    added: [...later.keys()].filter((name) => !earlier.has(name)),
    differences: differencesOf(before, after),
    worse: changes.some(({ worse }) => worse),
  };
}

function changeOf(before: Metric, after: Metric, threshold: number): MetricChange {
  const change = relative(after.median, before.median);
  const gain = after.better === 'higher' ? change : 0 - change;
  return {
    name: before.name,
    unit: before.unit,
    before: before.median,
    after: after.median,
    gain,
    worse: gain < -threshold,
    overlap: before.min <= after.max && after.min <= before.max,
  };
}

/** A change from 0 counts as 100 %. */
function relative(after: number, before: number): number {
  if (after === before) return 0;
  return before === 0 ? Math.sign(after) * Number.POSITIVE_INFINITY : (after - before) / Math.abs(before);
}

function differencesOf(before: BenchResult, after: BenchResult): string[] {
  const facts = ({ command, machine: { cpu, isa, cores, node }, options }: BenchResult) => ({
    command,
    cpu,
    isa,
    'cores allowed': cores.allowed,
    node,
    options: JSON.stringify(options),
  });
  const [a, b] = [facts(before), facts(after)];
  return (Object.keys(a) as (keyof typeof a)[])
    .filter((key) => a[key] !== b[key])
    .map((key) => `${key}: ${a[key]} before, ${b[key]} after`);
}

/** Exit code if a median is worse; not an error code. */
export const WORSE = 1;

function options(y: Builder) {
  return y
    .positional('before', { type: 'string', demandOption: true, describe: 'result file' })
    .positional('after', { type: 'string', demandOption: true, describe: 'result file of the same command' })
    .option('threshold', { type: 'string', default: '5%', describe: 'by which a median may be worse' })
    .epilogue(
      `Exit code ${WORSE}: a median is worse by more than the threshold; overlapping runs are marked.\n`,
    );
}

type CompareArgs = ReturnType<typeof options> extends Argv<infer Given> ? Given : never;

/** @param onWorse called where a median is worse by more than the threshold */
export const compare = (onWorse: () => void): CommandModule<object, CompareArgs> => ({
  command: 'compare <before> <after>',
  describe: 'compare two results, metric by metric',
  builder: options,
  async handler(args) {
    const threshold = parseThreshold(args.threshold);
    const [before, after] = [await readResult(args.before), await readResult(args.after)];
    const comparison = compareResults(before, after, threshold);
    await print(args, comparison, describe);
    if (comparison.worse) onWorse();
  },
});

/** `5%` or `0.05`. @throws CflowError USAGE */
export function parseThreshold(text: string): number {
  const [, number, percent] = /^(\d+(?:\.\d+)?)\s*(%?)$/.exec(text.trim()) ?? [];
  if (number !== undefined) return Number(number) / (percent ? 100 : 1);
  throw new CflowError('USAGE', `--threshold is ${JSON.stringify(text)}`, {
    field: 'threshold',
    value: text,
    remedy: 'a share such as 5% or 0.05',
  });
}

function describe({ changes, missing, added, differences, threshold, worse }: Comparison): string {
  const rows = changes.map(({ name, unit, before, after, gain, worse: bad, overlap }) => [
    `${name} (${unit})`,
    significant(before),
    significant(after),
    `${gain > 0 ? '+' : ''}${(100 * gain).toFixed(1)} %`,
    [bad ? 'WORSE' : '', bad && overlap ? '(extremes overlap)' : ''].filter(Boolean).join(' '),
  ]);
  const limit = `${(100 * threshold).toFixed(1)} %`;
  return [
    ...differences.map((text) => `differs: ${text}`),
    ...leftFirst([['', 'before', 'after', 'better by', ''], ...rows]),
    ...missing.map((name) => `only before: ${name}`),
    ...added.map((name) => `only after: ${name}`),
    worse ? `a median is worse by more than ${limit}` : `no median is worse by more than ${limit}`,
  ].join('\n');
}
