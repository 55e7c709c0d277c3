/** What the commands share: output that may fail, messages that must not, and the exit code. */
import { createRequire } from 'node:module';
import { asCflowError, CflowError, errorLine } from './errors.js';

const ignore = () => undefined;

/** What a command writes to; failures of it come through the callback of `write`. */
type Output = NodeJS.WritableStream;

/**
 * Writes a result to stdout and waits until it is taken, so that output never runs ahead of a slow reader.
 * Resolves to false where the reader has seen enough, as of `| head`: that is no failure.
 * @throws CflowError WRITE_FAILED
 */
export async function writeOutput(text: string, stream: Output = process.stdout): Promise<boolean> {
  const problem = await write(stream, text);
  if (!problem) return true;
  if (problem.code === 'EPIPE') return false;
  throw new CflowError('WRITE_FAILED', `cannot write: ${problem.code ?? problem.message}`, {
    file: 'stdout',
    remedy: 'make room, or send the output elsewhere',
    cause: problem,
  });
}

/** Writes a message for people to stderr. Where nobody can read it, it is lost: it never changes how a command ends. */
export async function writeMessage(text: string, stream: Output = process.stderr): Promise<void> {
  await write(stream, text);
}

/** Runs a command; resolves to its exit code and never throws. An error is one line on stderr. */
export async function runCommand(
  name: string,
  work: () => Promise<number>,
  message: (text: string) => Promise<void> = writeMessage,
): Promise<number> {
  // What others print, warnings and progress bars, must not end the command either.
  for (const stream of [process.stdout, process.stderr]) tolerate(stream);
  try {
    return await work();
  } catch (error) {
    const known = asCflowError(error);
    await message(errorLine(name, known));
    return known.exitCode;
  }
}

/** The version of a package, as its package.json has it. @param module `import.meta.url` of a module in its src/ or dist/ */
export function packageVersion(module: string): string {
  return (createRequire(module)('../package.json') as { version: string }).version;
}

/**
 * An error for what the parser of a command line objects to; its messages may have several lines.
 * @param options long options that there are, without dashes: the nearest one to a misspelt one is suggested
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

/** The candidate that takes the fewest changes of a character, if these are at most a third of its length. */
function nearest(word: string, candidates: readonly string[]): string | undefined {
  const [best] = candidates
    .map((candidate) => ({ candidate, distance: distance(word, candidate) }))
    .filter((row) => row.distance <= Math.max(1, row.candidate.length / 3))
    .sort((a, b) => a.distance - b.distance);
  return best?.candidate;
}

/** Levenshtein's distance: characters inserted, removed or replaced. */
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

/** The error of a write, if any. Streams to files may throw, those to pipes report. */
function write(stream: Output, text: string): Promise<NodeJS.ErrnoException | null | undefined> {
  tolerate(stream);
  return new Promise((resolve) => {
    try {
      stream.write(text, resolve);
    } catch (error) {
      resolve(error as NodeJS.ErrnoException);
    }
  });
}

/** An `error` event without a listener would end the process. */
function tolerate(stream: Output): void {
  if (!stream.listeners('error').includes(ignore)) stream.on('error', ignore);
}
