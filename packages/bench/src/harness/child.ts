/** Work in a process of its own: what it reports, and what an error in it becomes here. */
import { spawn } from 'node:child_process';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { CflowError, ERROR_CODES, ERRORS, type ErrorCode } from '@cflow/format';

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
  const child = spawn(process.execPath, [childScript(script), JSON.stringify(job)], {
    stdio: ['ignore', 'ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...environment },
  });
  const messages = text(child.stderr!);
  const answer = text(child.stdio[3] as NodeJS.ReadableStream);
  const [exit, signal] = await new Promise<[number | null, string | null]>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (...ended) => resolve(ended));
  });
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
