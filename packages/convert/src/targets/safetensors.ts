/** .cflow or .vflow → safetensors (F32, canonical names): one file, or a checkpoint directory that can be converted back. */
import { mkdir, readdir, rename, rm } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { crc32 } from 'node:zlib';
import {
  type ByteSource,
  CflowError,
  exportSafetensors,
  type ModelFile,
  safetensorsBytes,
} from '@cflow/format';
import { throwIfInterrupted } from '../pipeline/interrupt.js';
import { SINGLE_FILE } from '../sources/shards.js';
import { AtomicFile, checkSpace, failed } from './atomic-file.js';
import { temporaryName } from './orphans.js';

/** The small files of a checkpoint directory, by name. */
export function checkpointTexts({ config, metadata }: ModelFile): Record<string, string> {
  const json = (value: object) => `${JSON.stringify(value, undefined, 2)}\n`;
  const { bosTokenId, eosTokenIds } = config;
  const generation = {
    ...(bosTokenId !== undefined && { bos_token_id: bosTokenId }),
    ...(eosTokenIds.length > 0 && { eos_token_id: eosTokenIds }),
  };
  const { tokenizerJson, tokenizerConfigJson, chatTemplate } = metadata.tokenizer ?? {};
  return {
    'config.json': json({ model_type: 'cflow', ...config }),
    ...(Object.keys(generation).length > 0 && { 'generation_config.json': json(generation) }),
    ...(tokenizerJson !== undefined && { 'tokenizer.json': tokenizerJson }),
    ...(tokenizerConfigJson !== undefined && { 'tokenizer_config.json': tokenizerConfigJson }),
    ...(chatTemplate !== undefined && { 'chat_template.jinja': chatTemplate }),
  };
}

/** @throws CflowError OUTPUT_EXISTS unless there is nothing of this name, or an empty directory */
export async function checkDirectoryTarget(target: string): Promise<void> {
  const entries = await readdir(target).catch((cause: NodeJS.ErrnoException) => {
    if (cause.code === 'ENOENT') return [];
    return failed(target, 'cannot be a directory', cause);
  });
  if (entries.length === 0) return;
  throw new CflowError('OUTPUT_EXISTS', 'is a directory with files in it', {
    file: target,
    value: entries.length,
    limit: 0,
    remedy: 'choose another directory or empty this one; --overwrite replaces files only',
  });
}

export interface DirectoryExportOptions {
  readonly output: string;
  readonly signal?: AbortSignal | undefined;
  /** Bytes of the source that were read since the last call; may throw to stop. */
  readonly onProgress: (bytes: number) => void;
}

/**
 * Writes a checkpoint directory, complete or not at all: under another name beside the target, then renamed. Returns
 * the bytes of its files.
 * @throws CflowError OUTPUT_EXISTS, WRITE_FAILED, INTERRUPTED, VERIFY_FAILED (damaged source)
 */
export async function exportDirectory(
  source: ByteSource,
  file: ModelFile,
  { output, signal, onProgress }: DirectoryExportOptions,
): Promise<number> {
  const target = resolve(output);
  await checkDirectoryTarget(target);
  await checkSpace(dirname(target), output, safetensorsBytes(file));
  const partial = temporaryName(target);
  await mkdir(partial).catch((cause) => failed(output, 'cannot create', cause));
  try {
    let bytes = 0;
    for (const [name, text] of Object.entries(checkpointTexts(file))) {
      bytes += await writeFile(join(partial, name), (sink) => writeText(sink, text));
    }
    bytes += await writeFile(join(partial, SINGLE_FILE), (sink) =>
      exportSafetensors(source, file, sink, { crc32, onProgress }),
    );
    throwIfInterrupted(signal);
    await rename(partial, target).catch((cause) => failed(output, 'cannot finish', cause));
    return bytes;
  } catch (error) {
    await rm(partial, { recursive: true, force: true });
    throw error;
  }
}

async function writeText(sink: AtomicFile, text: string): Promise<number> {
  const bytes = new TextEncoder().encode(text);
  await sink.write(0, bytes);
  return bytes.length;
}

/** What `write` returns, once the file has its name. */
async function writeFile(path: string, write: (sink: AtomicFile) => Promise<number>): Promise<number> {
  const sink = await AtomicFile.create(path, 0);
  try {
    const bytes = await write(sink);
    await sink.commit(false);
    return bytes;
  } catch (error) {
    await sink.discard();
    throw error;
  }
}
