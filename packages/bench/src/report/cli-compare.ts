/** `cflow-bench compare`. */
import { CflowError } from '@cflow/format';
import { type Builder, print, table } from '../harness/cli-common.js';
import { readResult } from '../harness/result.js';
import { type Comparison, compareResults } from './compare.js';
import { significant } from './text.js';

/** Exit code where something is worse: nothing failed, so it is none of the codes of errors. */
export const WORSE = 1;

export function compareOptions(y: Builder) {
  return y
    .positional('before', { type: 'string', demandOption: true, describe: 'result file' })
    .positional('after', { type: 'string', demandOption: true, describe: 'result file of the same command' })
    .option('threshold', { type: 'string', default: '5%', describe: 'by which a median may be worse' })
    .epilogue(
      `Exit code ${WORSE}: a median is worse by more than the threshold. Extremes that overlap are said.`,
    );
}

/** @returns the exit code: 0, or WORSE */
export async function runCompare(
  args: Awaited<ReturnType<ReturnType<typeof compareOptions>['parse']>>,
): Promise<number> {
  const threshold = parseThreshold(args.threshold);
  const [before, after] = [await readResult(args.before), await readResult(args.after)];
  const comparison = compareResults(before, after, threshold);
  await print(args, comparison, describe);
  return comparison.worse ? WORSE : 0;
}

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
    ...table([['', 'before', 'after', 'better by', ''], ...rows]).map((line) => line.trimEnd()),
    ...missing.map((name) => `only before: ${name}`),
    ...added.map((name) => `only after: ${name}`),
    worse ? `worse by more than ${limit}` : `nothing is worse by more than ${limit}`,
  ].join('\n');
}
