/** The files of a checkpoint, wherever they lie: what opens a checkpoint asks for names, and never for more than it needs. */
import { basename, join, resolve } from 'node:path';
import { type FileSource, openUnlessMissing } from '@cflow/format/node';

export interface CheckpointFiles {
  /** Of the model where its configuration has none. */
  readonly modelName: string;
  /** Where it came from, as the metadata say: never a path. */
  readonly origin: string;
  /** What errors call a file. */
  at(name: string): string;
  /** Undefined if there is no such file. @throws CflowError NOT_READABLE if there is one that cannot be read */
  open(name: string): Promise<FileSource | undefined>;
}

/** Those of a directory. */
export function directoryFiles(path: string): CheckpointFiles {
  const name = basename(resolve(path));
  const at = (file: string) => join(path, file);
  return { modelName: name, origin: name, at, open: (file) => openUnlessMissing(at(file)) };
}

/** Opening tells most surely whether a file is there. */
export async function hasFile(files: CheckpointFiles, name: string): Promise<boolean> {
  const source = await files.open(name);
  await source?.close();
  return source !== undefined;
}
