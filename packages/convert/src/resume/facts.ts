/** What must be the same for an output to be continued: everything that decides its bytes. */
import { createHash } from 'node:crypto';
import { stat } from 'node:fs/promises';
import { CflowError, type Layout, type MetadataDraft } from '@cflow/format';
import type { ConvertOptions } from '../options.js';
import type { SourceFile } from '../sources/checkpoint.js';
import type { Facts } from './journal.js';

/**
 * The facts of a conversion to that layout. Files count by name, size, and time of change or claimed hash:
 * hashing a large checkpoint first would cost what `--resume` is to save.
 * @throws CflowError NOT_READABLE if a source file went away
 */
export async function conversionFacts(
  { dtype, container }: Pick<ConvertOptions, 'dtype' | 'container'>,
  metadata: MetadataDraft,
  files: readonly SourceFile[],
  { fileBytes: bytes, version: formatVersion }: Pick<Layout, 'fileBytes' | 'version'>,
): Promise<Facts> {
  const { version, options } = metadata.converter;
  const facts: Record<string, string | number> = {
    bytes,
    dtype,
    container,
    formatVersion,
    version,
    options: JSON.stringify(options),
    metadata: createHash('sha256').update(JSON.stringify(metadata)).digest('hex'),
  };
  for (const file of files) facts[`file ${file.name}`] = await identity(file);
  return facts;
}

async function identity({ path, bytes, sha256, remote }: SourceFile): Promise<string> {
  if (remote) return `${bytes} bytes, SHA-256 ${sha256}`;
  const { mtimeNs } = await stat(path, { bigint: true }).catch((cause: NodeJS.ErrnoException) => {
    throw new CflowError('NOT_READABLE', `cannot open: ${cause.code}`, { file: path, cause });
  });
  return `${bytes} bytes, changed ${mtimeNs}`;
}
