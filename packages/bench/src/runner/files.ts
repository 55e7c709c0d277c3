/** Files as commands are given them, and folders as they are told to make. */
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
 * Makes a folder and those that it is in, one after another: at /proc, Node's own way to do so never ends.
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

/** Options that name what is written, or say nothing of files. */
const NO_INPUTS = new Set(['_', '$0', 'save', 'output', 'svg', 'png', 'directory', 'target']);

/** Files that a command line names, and those in folders that it names, as far as they exist. */
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
 * Before anything is measured: whether `target` can be written.
 * @throws CflowError OUTPUT_EXISTS for what is no file and for what the command reads, WRITE_FAILED without its folder
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
