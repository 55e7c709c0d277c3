/** The files of a checkpoint, wherever they lie: what opens a checkpoint asks for names, and never for more than it needs. */
import { readdir } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { CflowError } from '@cflow/format';
import { errno, type FileSource, openUnlessMissing } from '@cflow/format/node';

export interface CheckpointFiles {
  /** Of the model where its configuration has none. */
  readonly modelName: string;
  /** Where it came from, as the metadata say: never a path. */
  readonly origin: string;
  /** What errors call a file. */
  at(name: string): string;
  /** Undefined if there is no such file. @throws CflowError NOT_READABLE if there is one that cannot be read */
  open(name: string): Promise<FileSource | undefined>;
  /** Names of the files that are there; of folders none. @throws CflowError NOT_READABLE */
  list(): Promise<readonly string[]>;
}

/** Those of a directory. */
export function directoryFiles(path: string): CheckpointFiles {
  const name = basename(resolve(path));
  const at = (file: string) => join(path, file);
  return {
    modelName: name,
    origin: name,
    at,
    open: (file) => openUnlessMissing(at(file)),
    list: () => fileNames(path),
  };
}

/** Links count as what they point to: the Hub's cache is made of them. */
export async function fileNames(path: string): Promise<readonly string[]> {
  const entries = await readdir(path, { withFileTypes: true }).catch((cause: unknown) => {
    throw new CflowError('NOT_READABLE', `cannot list: ${errno(cause) ?? String(cause)}`, {
      file: path,
      cause,
    });
  });
  return entries.filter((entry) => !entry.isDirectory()).map(({ name }) => name);
}
