/** Measurements in child processes: a fresh process has no warm caches and frees its memory. */
import { writeSync } from 'node:fs';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { asCflowError, CflowError, ERROR_CODES, ERRORS, type ErrorCode, errorLine } from '@cflow/format';
import { follow, spawnHeld, throwIfInterrupted } from './resources.js';

/** Tests run from src/, but the script is compiled to dist/. */
const SCRIPT = fileURLToPath(
  new URL('../child.js', import.meta.url.replace('/src/runner/', '/dist/runner/')),
);

export interface ChildOptions {
  readonly environment?: Readonly<Record<string, string>> | undefined;
  /** Directory of a memory cgroup: the process of the job starts inside it. */
  readonly group?: string | undefined;
}

/**
 * Runs a job of `child.ts` in a new process; resolves to its answer, a JSON document.
 * @throws CflowError with the error code of the child's exit code and the last line of stderr as message
 */
export async function runChild<T>(
  name: string,
  job: unknown,
  { environment, group }: ChildOptions = {},
): Promise<T> {
  const args = [SCRIPT, name, JSON.stringify(job), ...(group === undefined ? [] : [group])];
  const child = spawnHeld(process.execPath, args, {
    stdio: ['ignore', 'ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...environment },
  });
  const messages = text(child.stderr!);
  const answer = text(child.stdio[3] as NodeJS.ReadableStream);
  const [exit, signal] = await new Promise<[number | null, string | null]>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (...ended) => resolve(ended));
  });
  throwIfInterrupted();
  if (exit === 0) return JSON.parse(await answer) as T;
  const lastLine = (await messages)
    .trim()
    .split('\n')
    .at(-1)
    ?.replace(/^\S+: error: /, '');
  throw new CflowError(
    codeOf(exit),
    lastLine || `the process that measures ${name} ended with ${signal ?? exit}`,
  );
}

function codeOf(exit: number | null): ErrorCode {
  return ERROR_CODES.find((code) => ERRORS[code].exit === exit) ?? 'INTERNAL';
}

/** Writes the answer to descriptor 3; an error becomes one line and its exit code. */
export async function answer(name: string, work: () => Promise<unknown>): Promise<void> {
  follow();
  try {
    writeSync(3, JSON.stringify(await work()));
  } catch (error) {
    const known = asCflowError(error);
    process.stderr.write(errorLine(name, known));
    process.exitCode = known.exitCode;
  }
}
