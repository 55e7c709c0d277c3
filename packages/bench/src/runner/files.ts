/** Input files and output directories of the commands. */
import { mkdir, readdir, stat } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { CflowError, type ModelFile, openModel } from '@cflow/format';
import { checkTarget, errno, type FileSource, openFileSource } from '@cflow/format/node';

/** Opens a .cflow or .vflow file for `use`. @throws CflowError as `openModel` does */
export async function withModelFile<T>(
  path: string,
  use: (file: ModelFile, source: FileSource) => T | Promise<T>,
): Promise<T> {
  const source = await openFileSource(path);
  try {
    return await use(await openModel(source), source);
  } finally {
    await source.close();
  }
}

/** @throws CflowError NOT_READABLE unless it is a regular file */
export async function requireFile(file: string): Promise<void> {
  await (await openFileSource(file)).close();
}

/**
 * Creates a directory and its parents one by one: below /proc, Node's recursive mkdir never ends.
 * @throws CflowError WRITE_FAILED
 */
export async function makeFolder(folder: string): Promise<void> {
  const path = resolve(folder);
  if (await isFolder(path)) return;
  if (dirname(path) !== path) await makeFolder(dirname(path));
  await mkdir(path).catch(async (cause: unknown) => {
    if (await isFolder(path)) return;
    throw new CflowError('WRITE_FAILED', `cannot create the directory: ${errno(cause)}`, {
      file: path,
      cause,
    });
  });
}

const isFolder = (path: string) =>
  stat(path).then(
    (found) => found.isDirectory(),
    () => false,
  );

/** Options that name outputs, or no files. */
const NO_INPUTS = new Set(['_', '$0', 'save', 'output', 'svg', 'png', 'directory', 'target']);

/** Existing files that a command line names, and the files of directories that it names. */
export async function inputsOf(args: Readonly<Record<string, unknown>>): Promise<string[]> {
  const named = Object.entries(args)
    .filter(([key]) => !NO_INPUTS.has(key))
    .flatMap(([, value]) => value)
    .filter((value) => typeof value === 'string' && value !== '') as string[];
  const inside = [...new Set(named)].map(async (path) => {
    const names = await readdir(path).catch(() => []);
    return [path, ...names.map((name) => join(path, name))];
  });
  return (await Promise.all(inside)).flat();
}

/**
 * Checks, before anything is measured, that `target` can be written.
 * @throws CflowError OUTPUT_EXISTS if it is not a file or is an input, WRITE_FAILED if its directory is missing
 */
export async function checkOutput(
  target: string | undefined,
  args: Readonly<Record<string, unknown>>,
): Promise<void> {
  if (target === undefined) return;
  await checkTarget(target, await inputsOf(args), true);
  const folder = dirname(resolve(target));
  if (!(await isFolder(folder)))
    throw new CflowError('WRITE_FAILED', `directory ${folder} does not exist`, {
      file: target,
      remedy: 'create it',
    });
}
