/** The weights of a checkpoint directory: one safetensors file, or shards that an index names. */
import { CflowError } from '@cflow/format';
import type { FileSource } from '@cflow/format/node';
import { z } from 'zod';
import { type JsonObject, parseJsonObject } from '../json.js';
import type { CheckpointFiles } from './files.js';
import { readSafetensorsHeader, type SafetensorsEntry } from './safetensors.js';

export const SINGLE_FILE = 'model.safetensors';
export const INDEX_FILE = 'model.safetensors.index.json';
/** The weights in one file, under a name of their authors'. */
const CONSOLIDATED_FILE = 'consolidated.safetensors';
const SAFETENSORS = '.safetensors';
const MAX_LISTED = 20;

/** A tensor with the file that holds it. */
export interface StoredTensor {
  readonly entry: SafetensorsEntry;
  readonly source: FileSource;
}

export interface Weights {
  /** Names of the files within the directory. */
  readonly shards: readonly { readonly name: string; readonly source: FileSource }[];
  readonly tensors: ReadonlyMap<string, StoredTensor>;
  /** Files and tensors that were left out. */
  readonly notes: readonly string[];
  close(): Promise<void>;
}

const indexSchema = z.object({ weight_map: z.record(z.string(), z.string()) });

/** How weights are opened. */
export interface OpenWeightsOptions {
  /** Bytes that a header may have. */
  readonly maxHeaderBytes: number;
}

/**
 * Opens the weights of a checkpoint: those that an index names; without one model.safetensors, a complete set of
 * numbered shards, or consolidated.safetensors, whose headers say what they hold. Undefined where there are none.
 * @param index the text of INDEX_FILE, if there is one
 * @throws CflowError CONFIG_INVALID (index or shard names), NOT_READABLE (shards missing), TENSOR_MISMATCH (pairs); all
 *   misses in one error
 */
export async function openShardedWeights(
  files: CheckpointFiles,
  index: Uint8Array | undefined,
  options: OpenWeightsOptions,
): Promise<Weights | undefined> {
  const listed = (await files.list()).filter((name) => name.endsWith(SAFETENSORS)).sort();
  if (index) return openIndexed(files, index, listed, options);
  const names = weightFiles(listed, files);
  if (!names) return undefined;
  return openShards(files, { names, wanted: new Map(), index: files.at(names[0]!), listed }, options);
}

/** Opens all shards of an index and checks every (tensor, shard) pair in both directions. */
async function openIndexed(
  files: CheckpointFiles,
  index: Uint8Array,
  listed: readonly string[],
  options: OpenWeightsOptions,
): Promise<Weights> {
  const file = files.at(INDEX_FILE);
  const wanted = weightMap(parseJsonObject(index, { file }), file);
  const names = [...new Set(wanted.values())].sort();
  for (const name of names) checkShardName(name, file);
  return openShards(files, { names, wanted, index: file, listed }, options);
}

/**
 * The files that hold the weights where no index says it.
 * @throws CflowError NOT_READABLE if numbered shards are incomplete
 */
function weightFiles(listed: readonly string[], files: CheckpointFiles): readonly string[] | undefined {
  if (listed.includes(SINGLE_FILE)) return [SINGLE_FILE];
  return (
    numberedShards(listed, files) ?? (listed.includes(CONSOLIDATED_FILE) ? [CONSOLIDATED_FILE] : undefined)
  );
}

/** `model-00001-of-00003.safetensors` and its like: one complete set. */
function numberedShards(listed: readonly string[], files: CheckpointFiles): readonly string[] | undefined {
  const numbered = listed.flatMap((name) => {
    const [, stem, part, of] = /^(.*[-.])(\d{5})-of-(\d{5})\.safetensors$/.exec(name) ?? [];
    return stem === undefined ? [] : [{ name, set: `${stem}*-of-${of}`, part: Number(part), of: Number(of) }];
  });
  const [first] = numbered;
  if (!first) return undefined;
  const sets = [...new Set(numbered.map(({ set }) => set))];
  const have = new Set(numbered.map(({ part }) => part));
  // A hostile name may claim 99,999 parts: no more are counted than are there.
  const lacking = Array.from({ length: Math.min(first.of, numbered.length + MAX_LISTED) }, (_, i) => i + 1);
  const missing = lacking.filter((part) => !have.has(part));
  if (sets.length === 1 && missing.length === 0) return numbered.map(({ name }) => name);
  const problem =
    sets.length > 1
      ? `shards of several sets and no index: ${listOf(sets)}`
      : `shards of ${first.of} are there, and no index; missing are ${listOf(missing.map(String), ', ')}`;
  throw new CflowError('NOT_READABLE', problem, {
    file: files.at(first.name),
    value: sets.length > 1 ? sets : missing,
    remedy: 'the download is incomplete or mixed; download the checkpoint again',
  });
}

function weightMap(json: JsonObject, file: string): Map<string, string> {
  const parsed = indexSchema.safeParse(json);
  if (!parsed.success) {
    throw new CflowError('CONFIG_INVALID', 'must be an object of strings: tensor → shard', {
      file,
      field: 'weight_map',
    });
  }
  const pairs = Object.entries(parsed.data.weight_map);
  if (pairs.length > 0) return new Map(pairs);
  throw new CflowError('CONFIG_INVALID', 'the index lists no tensors', {
    file,
    field: 'weight_map',
    remedy: 'download it again, or remove it: weights are then found without an index',
  });
}

/** An index is input from elsewhere: its shards stay in its directory. */
function checkShardName(name: string, file: string): void {
  if (/^[^/\\:\0.][^/\\:\0]*\.safetensors$/.test(name)) return;
  throw new CflowError(
    'CONFIG_INVALID',
    `${JSON.stringify(name)} is not the name of a shard beside the index`,
    {
      file,
      field: 'weight_map',
      value: name,
    },
  );
}

interface ShardPlan {
  readonly names: readonly string[];
  /** Tensor → shard, as an index says; empty without one. */
  readonly wanted: ReadonlyMap<string, string>;
  /** What errors call it. */
  readonly index: string;
  /** Every safetensors file that is there. */
  readonly listed: readonly string[];
}

async function openShards(
  files: CheckpointFiles,
  { names, wanted, index, listed }: ShardPlan,
  options: OpenWeightsOptions,
): Promise<Weights> {
  const shards: { name: string; source: FileSource }[] = [];
  const close = async () => void (await Promise.all(shards.map(({ source }) => source.close())));
  try {
    const missing: string[] = [];
    for (const name of names) {
      const source = await files.open(name);
      if (source) shards.push({ name, source });
      else missing.push(name);
    }
    if (shards.length === 0) throw noShards(missing, index);
    const { tensors, problems, notes } = await collectTensors(shards, wanted, options);
    throwMisses(
      [...missing.map((name) => `shard ${name} is missing`), ...problems],
      missing.length > 0,
      index,
    );
    const stray = listed.filter((name) => !names.includes(name));
    return { shards, tensors, notes: [...strayNotes(stray, wanted.size > 0), ...notes], close };
  } catch (error) {
    await close();
    throw error;
  }
}

function noShards(missing: readonly string[], file: string): CflowError {
  const [first, ...others] = missing;
  const problem =
    others.length === 0 ? `its shard ${first} is missing` : `none of its ${missing.length} shards is there`;
  return new CflowError('NOT_READABLE', problem, {
    file,
    value: missing.length,
    remedy:
      'download the weights; for a dry run without them, use a directory that has config.json and no index',
  });
}

function strayNotes(stray: readonly string[], indexed: boolean): string[] {
  if (stray.length === 0) return [];
  const why = indexed
    ? `${INDEX_FILE} does not name ${stray.length === 1 ? 'it' : 'them'}`
    : 'the weights are read from another file';
  return [`ignored ${listOf(stray, ', ')}: ${why}`];
}

async function collectTensors(
  shards: Weights['shards'],
  wanted: ReadonlyMap<string, string>,
  { maxHeaderBytes }: OpenWeightsOptions,
) {
  const tensors = new Map<string, StoredTensor>();
  const problems: string[] = [];
  const opened = new Set<string>();
  const holders = new Map<string, string>();
  const doubled: string[] = [];
  for (const { name: shard, source } of shards) {
    opened.add(shard);
    for (const entry of (await readSafetensorsHeader(source, maxHeaderBytes)).tensors.values()) {
      const { name } = entry;
      const holder = holders.get(name);
      if (holder !== undefined) {
        const named = wanted.get(name);
        if (named === holder || named === shard) doubled.push(name);
        else problems.push(`${name} is in both ${holder} and ${shard}`);
        if (named !== shard) continue;
      }
      holders.set(name, shard);
      tensors.set(name, { entry, source });
    }
  }
  for (const [name, shard] of wanted) {
    const holder = holders.get(name);
    if (holder === shard || !opened.has(shard)) continue;
    problems.push(`${name} is not in ${shard}${holder ? ` but in ${holder}` : ''}`);
  }
  const notes =
    doubled.length > 0
      ? [`${listOf(doubled, ', ')}: in several shards; read from the one that ${INDEX_FILE} names`]
      : [];
  return { tensors, problems, notes };
}

function throwMisses(problems: readonly string[], missing: boolean, file: string): void {
  if (problems.length === 0) return;
  throw new CflowError(
    missing ? 'NOT_READABLE' : 'TENSOR_MISMATCH',
    `index and shards disagree in ${problems.length} ${problems.length === 1 ? 'place' : 'places'}: ${listOf(problems)}`,
    {
      file,
      value: problems.length,
      remedy: 'the download is incomplete or mixed; download the checkpoint again',
    },
  );
}

/** The first twenty, and how many more there are. */
export function listOf(problems: readonly string[], separator = '; '): string {
  const more = problems.length - MAX_LISTED;
  return problems.slice(0, MAX_LISTED).join(separator) + (more > 0 ? `${separator}and ${more} more` : '');
}
