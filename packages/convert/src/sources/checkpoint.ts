/** A checkpoint directory as the converter sees it: a configuration and tensors by canonical name. */
import { stat } from 'node:fs/promises';
import {
  CflowError,
  checkStreamCount,
  type Metadata,
  type ModelConfig,
  modelTensors,
  PRESETS,
} from '@cflow/format';
import { errno } from '@cflow/format/node';
import { cflow, type Family, readModelConfig, type TensorPlace } from '../families/index.js';
import { parseJsonObject } from '../json.js';
import { ADAPTER_FILE, adapterNotes, refuseAdapter } from './adapter.js';
import { type CheckpointFiles, directoryFiles } from './files.js';
import { refuseForeign } from './foreign.js';
import { readGeneration } from './generation.js';
import { tensorLedger, throwMismatches } from './ledger.js';
import { type BlockScales, PlacedTensor, Slabs } from './placed.js';
import {
  type Quantization,
  readQuantization,
  refuseQuantized,
  refuseQuantizedNames,
} from './quantization.js';
import { MAX_HEADER_BYTES, type RowRange } from './safetensors.js';
import type { SafetensorsDtype } from './safetensors-dtype.js';
import { type ScaleShape, scalesName } from './scales.js';
import { INDEX_FILE, openShardedWeights, SINGLE_FILE, type StoredTensor, type Weights } from './shards.js';
import { resolveTie } from './tie.js';
import { checkTokenIds } from './token-id-fields.js';
import { readTokenizer, type Tokenizer } from './tokenizer.js';
import { tokenizerNotes } from './tokenizer-check.js';

/** JSON files and templates are read whole; the largest tokenizers have some 35 MB. */
export const MAX_TEXT_BYTES = 128 * 1024 * 1024;

/** A file of a checkpoint. */
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

/** An opened checkpoint: configuration, tokenizer, and weights by canonical name. */
export interface CheckpointSource {
  /** The directory's or repository's name, never a path. */
  readonly name: string;
  readonly config: ModelConfig;
  /** Every file that was read or will be: weights first, then texts. */
  readonly files: readonly SourceFile[];
  readonly tokenizer: Tokenizer | undefined;
  /** Sampling defaults of generation_config.json. */
  readonly generation: Metadata['generation'];
  /** What was ignored, derived from a default or dropped on the way here, and what our libraries cannot run. */
  readonly notes: readonly string[];
  /** false after a dry run without weights: `tensor` and `rowsF32` then throw. */
  readonly hasWeights: boolean;
  /** dtype in the checkpoint and shape of a tensor. */
  tensor(canonicalName: string): { readonly dtype: SafetensorsDtype; readonly shape: readonly number[] };
  /** Slices along the first dimension (elements of a vector) as f32, row-major, in one contiguous read. */
  rowsF32(canonicalName: string, rowStart: number, rows: number): Promise<Float32Array>;
  /** Where the same rows lie, if they lie in a file as they are. */
  rowsInFile(canonicalName: string, rowStart: number, rows: number): FileRows | undefined;
  /** What the checkpoint calls a tensor, and the file that holds it: for errors. */
  storedAt(canonicalName: string): { readonly file: string; readonly field: string };
  /** Closes its files. */
  close(): Promise<void>;
}

/** How a checkpoint is opened. */
export interface OpenCheckpointOptions {
  /** `auto`: what config.json says; otherwise a preset, whose tensors have their canonical names. */
  model?: string;
  /** Allows a directory without weights. Weights that are there are checked all the same. */
  dryRun?: boolean;
  /** Where the files are, if not in a directory called `path`; `path` is then what errors call the checkpoint. */
  files?: CheckpointFiles;
  /** Bytes that the header of a safetensors file may have. Default MAX_HEADER_BYTES. */
  maxHeaderBytes?: number | undefined;
}

interface Texts {
  read(name: string): Promise<Uint8Array | undefined>;
  readonly files: SourceFile[];
}

/**
 * Opens a directory with config.json and weights, and accounts for every field, tensor and scale. Reads no weights, but
 * for a stored LM head that may be the embedding.
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
  const found: string[] = [];
  const note = (text: string) => void found.push(text);
  const readConfig = await configReader(files, texts, options.model ?? 'auto', note);
  const tokenizer = await tokenizerOf(files, texts, note);
  found.push(...(await tokenizerNotes(tokenizer)));
  // A wrong configuration is said first: without it nothing of the weights can be judged.
  const weights = await openWeights(path, files, texts, options).catch((error: unknown) => {
    readConfig(undefined);
    throw error;
  });
  try {
    const read = readConfig(weights);
    const { family, quantization, generation } = read;
    const notes = [...read.notes, ...found, ...(weights?.notes ?? [])];
    const model = { name: files.origin, path, quantization, tokenizer, generation, texts, weights };
    // Without weights nothing is converted, and sizes are those of the model before it was quantized.
    if (!weights) {
      checkStreamCount(read.config, path);
      return checkpointSource({ ...model, config: read.config, places: new Map(), scales: new Map(), notes });
    }
    refuseQuantized(quantization, files.at('config.json'));
    refuseQuantizedNames(weights.tensors.keys(), path);
    const tied = await resolveTie(read.config, family, weights.tensors);
    const ledger = tensorLedger({ config: tied.config, family, stored: tied.tensors, quantization });
    throwMismatches(ledger.mismatches, path);
    return checkpointSource({
      ...model,
      weights: { ...weights, tensors: tied.tensors },
      config: tied.config,
      places: ledger.places,
      scales: ledger.scales,
      notes: [...notes, ...tied.notes, ...ledger.notes],
    });
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
  generation: Metadata['generation'];
  notes: readonly string[];
  texts: Texts;
  weights: Weights | undefined;
  places: ReadonlyMap<string, TensorPlace>;
  scales: ReadonlyMap<string, ScaleShape>;
}

/** A tensor of the model with what holds it. */
interface Found {
  readonly stored: StoredTensor;
  readonly shape: readonly number[];
  readonly placed: PlacedTensor;
}

/** Finds tensors by canonical name, each once. */
function finder({ path, config, weights, places, scales }: Parts): (canonical: string) => Found {
  let shapes: ReadonlyMap<string, readonly number[]> | undefined;
  const found = new Map<string, Found>();
  return (canonical) => {
    const known = found.get(canonical);
    if (known) return known;
    const place = places.get(canonical);
    const stored = place && weights?.tensors.get(place.name);
    if (!stored) {
      const problem = weights ? `no tensor ${canonical}` : 'opened without weights';
      throw new CflowError('INTERNAL', problem, { file: path, field: canonical });
    }
    const placed = new PlacedTensor(place, stored, scalesOf(place, weights!, scales));
    shapes ??= new Map(modelTensors(config).map(({ name, shape }) => [name, shape]));
    const tensor = { stored, shape: shapes.get(canonical)!, placed };
    found.set(canonical, tensor);
    return tensor;
  };
}

function scalesOf(
  { name }: TensorPlace,
  { tensors }: Weights,
  scales: ReadonlyMap<string, ScaleShape>,
): BlockScales | undefined {
  const shape = scales.get(name);
  return shape && { stored: tensors.get(scalesName(name))!, block: shape.block };
}

function checkpointSource(parts: Parts): CheckpointSource {
  const { name, config, tokenizer, generation, notes, texts, weights } = parts;
  const find = finder(parts);
  const slabs = new Slabs();
  const shards = weights?.shards ?? [];
  return {
    name,
    config,
    files: [
      ...shards.map((shard) => ({ name: shard.name, path: shard.source.name, bytes: shard.source.size })),
      ...texts.files,
    ],
    tokenizer,
    generation,
    notes,
    hasWeights: weights !== undefined,
    tensor: (canonical) => {
      const { stored, shape } = find(canonical);
      return { dtype: stored.entry.dtype, shape };
    },
    rowsF32: async (canonical, rowStart, rows) => {
      const { placed, shape } = find(canonical);
      return placed.rowsF32(shape, rowStart, rows, slabs);
    },
    rowsInFile: (canonical, rowStart, rows) => {
      const { placed, stored } = find(canonical);
      const { name: file, fd } = stored.source;
      if (fd === undefined) return undefined;
      const range = placed.range(rowStart, rows);
      return range && { file, fd, ...range };
    },
    storedAt: (canonical) => {
      const { stored } = find(canonical);
      return { file: stored.source.name, field: stored.entry.name };
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

interface ConfigRead {
  readonly family: Family;
  readonly config: ModelConfig;
  readonly quantization: Quantization | undefined;
  readonly generation: Metadata['generation'];
  readonly notes: readonly string[];
}

/** Reads the texts of the configuration; what is returned interprets them, by shapes of tensors where they are silent. */
async function configReader(
  files: CheckpointFiles,
  texts: Texts,
  model: string,
  note: (text: string) => void,
): Promise<(weights: Weights | undefined) => ConfigRead> {
  if (model !== 'auto') {
    const config = presetNamed(model);
    return () => ({ family: cflow, config, quantization: undefined, generation: undefined, notes: [] });
  }
  const file = files.at('config.json');
  const bytes = await texts.read('config.json');
  if (!bytes) {
    refuseAdapter(await texts.read(ADAPTER_FILE), files);
    throw new CflowError('NOT_READABLE', 'missing', {
      file,
      remedy: 'name a checkpoint directory, or a preset as model',
    });
  }
  const generationFile = files.at('generation_config.json');
  const generationBytes = await texts.read('generation_config.json');
  const generation = generationBytes && parseJsonObject(generationBytes, { file: generationFile });
  if (generation) checkTokenIds(generation, generationFile);
  const json = parseJsonObject(bytes, { file });
  checkTokenIds(json, file);
  const quantization = readQuantization(json, file);
  const sampling = readGeneration(generation, note);
  return (weights) => {
    const shapeOf = (name: string) => weights?.tensors.get(name)?.entry.shape;
    const context = { name: files.modelName, file, generation, shapeOf: weights && shapeOf };
    return { ...readModelConfig(json, context), quantization, generation: sampling };
  };
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

async function tokenizerOf(
  at: CheckpointFiles,
  texts: Texts,
  note: (text: string) => void,
): Promise<Tokenizer | undefined> {
  const files = {
    ...(await vocabulary(texts)),
    tokenizerConfigJson: await texts.read('tokenizer_config.json'),
    chatTemplate: await texts.read('chat_template.jinja'),
    chatTemplateJson: await texts.read('chat_template.json'),
  };
  return readTokenizer(files, at.at, note);
}

/** tokenizer.json, or the older pair of files where there is none. */
async function vocabulary(texts: Texts) {
  const tokenizerJson = await texts.read('tokenizer.json');
  if (tokenizerJson) return { tokenizerJson };
  return { vocabJson: await texts.read('vocab.json'), merges: await texts.read('merges.txt') };
}

/** Undefined in a dry run without weights. */
async function openWeights(
  dir: string,
  files: CheckpointFiles,
  texts: Texts,
  { dryRun = false, maxHeaderBytes = MAX_HEADER_BYTES }: OpenCheckpointOptions,
): Promise<Weights | undefined> {
  const index = await texts.read(INDEX_FILE);
  const weights = await openShardedWeights(files, index, { maxHeaderBytes });
  const names = await files.list();
  if (weights) return { ...weights, notes: [...weights.notes, ...adapterNotes(names)] };
  if (names.includes(ADAPTER_FILE)) refuseAdapter(await texts.read(ADAPTER_FILE), files);
  if (dryRun) return undefined;
  const pickled = names.includes('pytorch_model.bin');
  throw new CflowError('NOT_READABLE', `neither ${SINGLE_FILE} nor ${INDEX_FILE}`, {
    file: dir,
    remedy: pickled
      ? 'pytorch_model.bin is not read; save the model as safetensors'
      : 'the weights are missing',
  });
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
        const bytes = await source.read(0, source.size);
        refuseForeign(bytes, path, 'text');
        return bytes;
      } finally {
        await source.close();
      }
    },
  };
}
