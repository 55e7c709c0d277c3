/** Errors of a command line, with what was probably meant. */
import { CflowError } from '@cflow/format/internal/errors.js';

/**
 * An error for what the parser of a command line rejects; its messages may have several lines.
 * @param options long options that exist, without dashes: the nearest one to a misspelt one is suggested
 */
export function usageError(
  name: string,
  message: string | null | undefined,
  options: readonly string[] = [],
): CflowError {
  const line = (message ?? 'the command line is wrong').trim().replace(/\s*\n\s*/g, ' ');
  const unknown = /^Unknown arguments?: (\S+?)(?:,|$)/.exec(line)?.[1];
  const meant = unknown === undefined ? undefined : nearest(unknown, options);
  const remedy = meant === undefined ? `see ${name} --help` : `did you mean --${meant}? see ${name} --help`;
  return new CflowError('USAGE', line, { remedy });
}

/** @throws CflowError USAGE for a name on the Hub, where a file is expected */
export function refuseHubName(path: string): void {
  if (!path.startsWith('hf:')) return;
  const file = `${path.slice(3).split('@')[0]!.split('/').at(-1)}.cflow`;
  throw new CflowError('USAGE', 'a repository on the Hub, where a .cflow or .vflow is expected', {
    file: path,
    remedy: `convert it first: cflow-convert ${path} ${file}`,
  });
}

/** The candidate at the smallest edit distance, if that is at most a third of its length. */
function nearest(word: string, candidates: readonly string[]): string | undefined {
  const [best] = candidates
    .map((candidate) => ({ candidate, distance: distance(word, candidate) }))
    .filter((row) => row.distance <= Math.max(1, row.candidate.length / 3))
    .sort((a, b) => a.distance - b.distance);
  return best?.candidate;
}

/** Levenshtein distance: characters inserted, removed or replaced. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const replaced = row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(replaced, row[j]! + 1, next[j - 1]! + 1));
    }
    row = next;
  }
  return row[b.length]!;
}
