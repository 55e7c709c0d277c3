/** What a command may put its output in place of. */
import { lstat, stat } from 'node:fs/promises';
import { CflowError } from './errors.js';

/**
 * Refuses a target that is one of the inputs (by device and inode, so links and spellings do not hide it), that is there
 * and may not be replaced, or that is no regular file: an output is written beside it and takes its name, which would
 * leave a file where a device, a pipe or a link was.
 * @throws CflowError OUTPUT_EXISTS; USAGE for an empty name
 */
export async function checkTarget(
  target: string,
  inputs: readonly string[],
  overwrite: boolean,
): Promise<void> {
  if (target === '') throw new CflowError('USAGE', 'the output has no name');
  const itself = await lstat(target).catch(() => undefined);
  if (!itself) return;
  const refuse = (problem: string, remedy?: string): never => {
    throw new CflowError('OUTPUT_EXISTS', problem, { file: target, remedy });
  };
  const existing = await stat(target).catch(() => itself);
  for (const input of inputs) {
    const other = await stat(input).catch(() => undefined);
    if (other && other.dev === existing.dev && other.ino === existing.ino)
      refuse(
        `the output is the input ${input}`,
        'choose another output; --overwrite does not allow this either',
      );
  }
  if (itself.isSymbolicLink()) refuse('is a symbolic link', 'name the file that it points to');
  if (existing.isDirectory()) refuse('is a directory');
  if (!existing.isFile()) refuse('is no regular file', 'choose another output');
  if (!overwrite) refuse('exists', 'use --overwrite to replace it');
}
