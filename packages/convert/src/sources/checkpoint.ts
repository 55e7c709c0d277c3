/** A checkpoint directory as the converter sees it: a configuration and tensors by canonical name. */
import { stat } from 'node:fs/promises';
import { CflowError, type ModelConfig, PRESETS } from '@cflow/format';
import { errno } from '@cflow/format/node';
import { cflow, type Family, readModelConfig } from '../families/index.js';
import { parseJsonObject } from '../json.js';
import { type CheckpointFiles, directoryFiles, hasFile } from './files.js';
import { listTensorMismatches, tensorNameMap, throwMismatches } from './mismatch.js';
import { type RowRange, tensorRowRange, tensorRowsF32 } from './safetensors.js';
import type { SafetensorsDtype } from './safetensors-dtype.js';
import {
  INDEX_FILE,
  openIndexed,
  openSingleFile,
  SINGLE_FILE,
  type StoredTensor,
  type Weights,
} from './shards.js';
import { readTokenizer, type Tokenizer } from './tokenizer.js';

/** JSON files and templates are read whole; the largest tokenizers have some 35 MB. */
export const MAX_TEXT_BYTES = 128 * 1024 * 1024;

export interface SourceFile {
  /** Within the checkpoint. */
  readonly name: string;
  readonly path: string;
  readonly bytes: number;
  /** What the place that it came from claims. */
  readonly sha256?: string | undefined;
  /** Has no path on this machine: its claimed hash is all that there is. */
  readonly remote?: boolean | undefined;
}

/** Rows as they lie in an open file, for a thread that reads them itself. */
export interface FileRows extends RowRange {
  readonly file: string;
  readonly fd: number;
}

export interface CheckpointSource {
  /** The directory's or repository's name, never a path. */
  readonly name: string;
  readonly config: ModelConfig;
  /** Every file that was read or will be: weights first, then texts. */
  readonly files: readonly SourceFile[];
  readonly tokenizer: Tokenizer | undefined;
  /** false after a dry run without weights: `tensor` and `rowsF32` then throw. */
  readonly hasWeights: boolean;
  /** dtype in the checkpoint and shape of a tensor. */
  tensor(canonicalName: string): { readonly dtype: SafetensorsDtype; readonly shape: readonly number[] };
  /** Slices along the first dimension (elements of a vector) as f32, row-major, in one contiguous read. */
  rowsF32(canonicalName: string, rowStart: number, rows: number): Promise<Float32Array>;
  /** Where the same rows lie, if they lie in a file as they are. */
  rowsInFile(canonicalName: string, rowStart: number, rows: number): FileRows | undefined;
  close(): Promise<void>;
}

export interface OpenCheckpointOptions {
  /** `auto`: what config.json says; otherwise a preset, whose tensors have their canonical names. */
  model?: string;
  /** Allows a directory without weights. Weights that are there are checked all the same. */
  dryRun?: boolean;
  /** Where the files are, if not in a directory called `path`; `path` is then what errors call the checkpoint. */
  files?: CheckpointFiles;
}

interface Texts {
  read(name: string): Promise<Uint8Array | undefined>;
  readonly files: SourceFile[];
}

/**
 * Opens a directory with config.json and model.safetensors, or shards with their index, and checks configuration,
 * headers and tensors against each other. Reads no weights.
 * @throws CflowError NOT_READABLE, CONFIG_INVALID, UNSUPPORTED, FORMAT_INVALID, TENSOR_MISMATCH (all at once), USAGE
 *   (unknown preset)
 */
export async function openCheckpoint(
  path: string,
  options: OpenCheckpointOptions = {},
): Promise<CheckpointSource> {
  if (!options.files) await checkDirectory(path);
  const files = options.files ?? directoryFiles(path);
  const texts = textFiles(files);
  const { family, config } = await readConfig(files, texts, options.model ?? 'auto');
  const tokenizer = await tokenizerOf(files, texts);
  const weights = await openWeights(path, files, texts, options.dryRun ?? false);
  try {
    const names = tensorNameMap(config, family, path);
    if (weights) throwMismatches(listTensorMismatches(config, family, weights.tensors), path);
    return checkpointSource({ name: files.origin, path, config, tokenizer, texts, weights, names });
  } catch (error) {
    await weights?.close();
    throw error;
  }
}

interface Parts {
  name: string;
  path: string;
  config: ModelConfig;
  tokenizer: Tokenizer | undefined;
  texts: Texts;
  weights: Weights | undefined;
  names: ReadonlyMap<string, string>;
}

function checkpointSource({ name, path, config, tokenizer, texts, weights, names }: Parts): CheckpointSource {
  const find = (canonical: string): StoredTensor => {
    const stored = weights?.tensors.get(names.get(canonical) ?? '');
    if (stored) return stored;
    const problem = weights ? `no tensor ${canonical}` : 'opened without weights';
    throw new CflowError('INTERNAL', problem, { file: path, field: canonical });
  };
  const shards = weights?.shards ?? [];
  return {
    name,
    config,
    files: [
      ...shards.map((shard) => ({ name: shard.name, path: shard.source.name, bytes: shard.source.size })),
      ...texts.files,
    ],
    tokenizer,
    hasWeights: weights !== undefined,
    tensor: (canonical) => {
      const { dtype, shape } = find(canonical).entry;
      return { dtype, shape };
    },
    rowsF32: async (canonical, rowStart, rows) => {
      const { source, entry } = find(canonical);
      return tensorRowsF32(source, entry, rowStart, rows);
    },
    rowsInFile: (canonical, rowStart, rows) => {
      const { source, entry } = find(canonical);
      const { name: file, fd } = source;
      return fd === undefined ? undefined : { file, fd, ...tensorRowRange(source, entry, rowStart, rows) };
    },
    close: async () => weights?.close(),
  };
}

async function checkDirectory(path: string): Promise<void> {
  const stats = await stat(path).catch((cause: unknown) => {
    throw new CflowError('NOT_READABLE', `cannot open: ${errno(cause) ?? String(cause)}`, {
      file: path,
      cause,
    });
  });
  if (!stats.isDirectory()) {
    throw new CflowError('NOT_READABLE', 'not a directory', {
      file: path,
      remedy: 'name the directory that holds config.json and the weights',
    });
  }
}

async function readConfig(
  files: CheckpointFiles,
  texts: Texts,
  model: string,
): Promise<{ family: Family; config: ModelConfig }> {
  if (model !== 'auto') return { family: cflow, config: presetNamed(model) };
  const file = files.at('config.json');
  const bytes = await texts.read('config.json');
  if (!bytes) {
    throw new CflowError('NOT_READABLE', 'missing', {
      file,
      remedy: 'name a checkpoint directory, or a preset as model',
    });
  }
  const generationBytes = await texts.read('generation_config.json');
  const generation =
    generationBytes && parseJsonObject(generationBytes, { file: files.at('generation_config.json') });
  return readModelConfig(parseJsonObject(bytes, { file }), { name: files.modelName, file, generation });
}

function presetNamed(model: string): ModelConfig {
  const known = ['auto', ...Object.keys(PRESETS)];
  if (Object.hasOwn(PRESETS, model)) return PRESETS[model]!;
  throw new CflowError('USAGE', `no model is called ${JSON.stringify(model)}`, {
    field: 'model',
    value: model,
    limit: known,
    remedy: `one of ${known.join(', ')}`,
  });
}

async function tokenizerOf(at: CheckpointFiles, texts: Texts): Promise<Tokenizer | undefined> {
  const files = {
    tokenizerJson: await texts.read('tokenizer.json'),
    tokenizerConfigJson: await texts.read('tokenizer_config.json'),
    chatTemplate: await texts.read('chat_template.jinja'),
  };
  return readTokenizer(files, at.at);
}

/** The single file wins over an index, as in transformers. */
async function openWeights(
  dir: string,
  files: CheckpointFiles,
  texts: Texts,
  dryRun: boolean,
): Promise<Weights | undefined> {
  if (await hasFile(files, SINGLE_FILE)) return openSingleFile(files);
  const index = await texts.read(INDEX_FILE);
  if (index) return dryRun ? openIndexed(files, index).catch(unlessUnreadable) : openIndexed(files, index);
  if (dryRun) return undefined;
  const pickled = await hasFile(files, 'pytorch_model.bin');
  throw new CflowError('NOT_READABLE', `neither ${SINGLE_FILE} nor ${INDEX_FILE}`, {
    file: dir,
    remedy: pickled
      ? 'pytorch_model.bin is not read; save the model as safetensors'
      : 'the weights are missing',
  });
}

/** Of a large model one often has the index but not the shards; a dry run is for just that. */
function unlessUnreadable(error: unknown): undefined {
  if (error instanceof CflowError && error.code === 'NOT_READABLE') return undefined;
  throw error;
}

/** Reads the small files of a directory whole and remembers which there were. */
function textFiles(at: CheckpointFiles): Texts {
  const files: SourceFile[] = [];
  return {
    files,
    async read(name) {
      const source = await at.open(name);
      if (!source) return undefined;
      const path = source.name;
      try {
        if (source.size > MAX_TEXT_BYTES) {
          throw new CflowError('LIMIT_EXCEEDED', `${source.size} bytes, at most ${MAX_TEXT_BYTES}`, {
            file: path,
            value: source.size,
            limit: MAX_TEXT_BYTES,
          });
        }
        files.push({ name, path, bytes: source.size });
        return await source.read(0, source.size);
      } finally {
        await source.close();
      }
    },
  };
}
