/** The weights of a checkpoint directory: one safetensors file, or shards that an index names. */
import { CflowError } from '@cflow/format';
import type { FileSource } from '@cflow/format/node';
import { z } from 'zod';
import { type JsonObject, parseJsonObject } from '../json.js';
import type { CheckpointFiles } from './files.js';
import { readSafetensorsHeader, type SafetensorsEntry } from './safetensors.js';

export const SINGLE_FILE = 'model.safetensors';
export const INDEX_FILE = 'model.safetensors.index.json';
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
  close(): Promise<void>;
}

const indexSchema = z.object({ weight_map: z.record(z.string(), z.string()) });

/** Opens the one file. Throws as openFileSource and readSafetensorsHeader. */
export async function openSingleFile(files: CheckpointFiles): Promise<Weights> {
  return openShards(files, [SINGLE_FILE], new Map(), SINGLE_FILE);
}

/**
 * Opens all shards of an index and checks every (tensor, shard) pair in both directions before any weight is read.
 * @throws CflowError CONFIG_INVALID (index or shard names), NOT_READABLE (shards missing), TENSOR_MISMATCH (pairs); all
 *   misses in one error
 */
export async function openIndexed(files: CheckpointFiles, index: Uint8Array): Promise<Weights> {
  const file = files.at(INDEX_FILE);
  const wanted = weightMap(parseJsonObject(index, { file }), file);
  const names = [...new Set(wanted.values())].sort();
  for (const name of names) checkShardName(name, file);
  return openShards(files, names, wanted, file);
}

function weightMap(json: JsonObject, file: string): Map<string, string> {
  const parsed = indexSchema.safeParse(json);
  if (!parsed.success) {
    throw new CflowError('CONFIG_INVALID', 'must be an object of strings: tensor → shard', {
      file,
      field: 'weight_map',
    });
  }
  return new Map(Object.entries(parsed.data.weight_map));
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

async function openShards(
  files: CheckpointFiles,
  names: readonly string[],
  wanted: ReadonlyMap<string, string>,
  file: string,
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
    const { tensors, problems } = await collectTensors(shards, wanted);
    throwMisses(
      [...missing.map((name) => `shard ${name} is missing`), ...problems],
      missing.length > 0,
      file,
    );
    return { shards, tensors, close };
  } catch (error) {
    await close();
    throw error;
  }
}

async function collectTensors(shards: Weights['shards'], wanted: ReadonlyMap<string, string>) {
  const tensors = new Map<string, StoredTensor>();
  const problems: string[] = [];
  const opened = new Set<string>();
  const holders = new Map<string, string>();
  for (const { name: shard, source } of shards) {
    opened.add(shard);
    for (const entry of (await readSafetensorsHeader(source)).tensors.values()) {
      const holder = holders.get(entry.name);
      if (holder !== undefined) problems.push(`${entry.name} is in both ${holder} and ${shard}`);
      holders.set(entry.name, shard);
      tensors.set(entry.name, { entry, source });
    }
  }
  for (const [name, shard] of wanted) {
    const holder = holders.get(name);
    if (holder === shard || !opened.has(shard)) continue;
    problems.push(`${name} is not in ${shard}${holder ? ` but in ${holder}` : ''}`);
  }
  return { tensors, problems };
}

function throwMisses(problems: readonly string[], missing: boolean, file: string): void {
  if (problems.length === 0) return;
  throw new CflowError(
    missing ? 'NOT_READABLE' : 'TENSOR_MISMATCH',
    `index and shards disagree in ${problems.length} places: ${listed(problems)}`,
    {
      file,
      value: problems.length,
      remedy: 'the download is incomplete or mixed; fetch the checkpoint again',
    },
  );
}

/** The first twenty, and how many more there are. */
export function listed(problems: readonly string[], separator = '; '): string {
  const more = problems.length - MAX_LISTED;
  return problems.slice(0, MAX_LISTED).join(separator) + (more > 0 ? `${separator}and ${more} more` : '');
}
