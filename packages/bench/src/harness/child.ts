/** Work in a process of its own: what it reports, and what an error in it becomes here. */
import { writeSync } from 'node:fs';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { asCflowError, CflowError, ERROR_CODES, ERRORS, type ErrorCode, errorLine } from '@cflow/format';
import { follow, spawnHeld, throwIfInterrupted } from './resources.js';

/**
 * Tests run from src/, where children exist only compiled.
 * @param name within the package's dist/, e.g. `decode/decode-child`
 */
export function childScript(name: string): string {
  const here = import.meta.url.replace('/src/harness/', '/dist/harness/');
  return fileURLToPath(new URL(`../${name}.js`, here));
}

/**
 * Runs a script of this package; resolves to the JSON document that it writes to descriptor 3.
 * @throws CflowError as the child failed: its exit code says which, its last line why
 */
export async function runChild<T>(
  script: string,
  job: unknown,
  environment: Readonly<Record<string, string>> = {},
): Promise<T> {
  const child = spawnHeld(process.execPath, [childScript(script), JSON.stringify(job)], {
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
  const said = (await messages)
    .trim()
    .split('\n')
    .at(-1)
    ?.replace(/^\S+: error: /, '');
  throw new CflowError(codeOf(exit), said || `${script} ended with ${signal ?? exit}`);
}

/** The kind of error whose exit code it is. */
export function codeOf(exit: number | null): ErrorCode {
  const found = ERROR_CODES.find((code) => ERRORS[code].exit === exit);
  return found ?? 'INTERNAL';
}

/** What a script for `runChild` does: the job is its argument, the answer goes to descriptor 3, an error is one line. */
export async function answerJob<T>(name: string, work: (job: T) => Promise<unknown>): Promise<void> {
  follow();
  try {
    writeSync(3, JSON.stringify(await work(JSON.parse(process.argv[2]!) as T)));
  } catch (error) {
    const known = asCflowError(error);
    process.stderr.write(errorLine(name, known));
    process.exitCode = known.exitCode;
  }
}
