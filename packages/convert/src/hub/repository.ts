/** Opens a repository on the Hub as a checkpoint. */
import { createHash } from 'node:crypto';
import { dirname } from 'node:path';
import { CflowError, memorySource } from '@cflow/format';
import type { FileSource } from '@cflow/format/node';
import {
  type CheckpointSource,
  MAX_TEXT_BYTES,
  openCheckpoint,
  type SourceFile,
} from '../sources/checkpoint.js';
import { type CheckpointFiles, fileNames } from '../sources/files.js';
import { readSafetensorsHeader } from '../sources/safetensors.js';
import { HubCache } from './cache.js';
import { HubClient } from './client.js';
import { downloadAll, fetchWhole } from './download.js';
import { type HubEnvironment, hubEnvironment } from './environment.js';
import { type HubListing, listRepository } from './listing.js';
import { type HubName, parseHubName } from './name.js';
import type { OpenSourceOptions } from './options.js';
import { BlockCache, RangeSource } from './range-source.js';
import { RemoteFile } from './remote-file.js';

/** Files that may be large and are read in parts. */
const WEIGHTS = /\.(?:safetensors|bin|gguf)$/;
/** Weights without a claimed SHA-256 are fetched whole for it; git itself holds no larger ones on the Hub. */
const MAX_WHOLE_BYTES = 16 * 1024 * 1024;
/** Blocks of weights on their way; with 8 MiB blocks enough for all matrices of a layer side by side. */
const BLOCK_CACHE_BYTES = 128 * 1024 * 1024;

/** As openSource, of a name that begins with `hf:`. */
export async function openRepository(options: OpenSourceOptions): Promise<CheckpointSource> {
  const name = parseHubName(options.source);
  const environment = await hubEnvironment();
  const cache = new HubCache(environment.cacheDir, name.repo);
  const { model, dryRun = false, source, maxHeaderBytes } = options;
  if (environment.offline) {
    const files = await offlineFiles(cache, name, source);
    return openCheckpoint(source, { model, dryRun, files, maxHeaderBytes });
  }
  const files = await HubFiles.open(name, environment, cache, options);
  // From headers alone everything is checked before anything large is fetched.
  const first = await files.checkpoint(model, dryRun);
  const missing = files.missing(first);
  if (dryRun || !options.cache || missing.length === 0) return first;
  try {
    const bytes = missing.reduce((sum, { file }) => sum + file.bytes, 0);
    await options.beforeDownload?.(first, { directory: environment.cacheDir, bytes });
  } finally {
    await first.close();
  }
  await downloadAll(cache, files.listing.commit, missing, {
    signal: options.signal,
    onProgress: options.onDownload,
  });
  return files.checkpoint(model, dryRun);
}

async function offlineFiles(
  cache: HubCache,
  { repo, revision }: HubName,
  source: string,
): Promise<CheckpointFiles> {
  const commit = await cache.commitOf(revision);
  const config = commit ? await cache.open(commit, 'config.json') : undefined;
  await config?.close();
  if (!commit || !config) {
    throw new CflowError('NOT_READABLE', 'not in the cache, and HF_HUB_OFFLINE is set', {
      file: source,
      value: cache.dir,
      remedy: 'convert once without HF_HUB_OFFLINE, or set HF_HOME to the cache that has it',
    });
  }
  return {
    modelName: modelName(repo),
    origin: origin(repo, commit),
    at: (file) => `${source}: ${file}`,
    open: (file) => cache.open(commit, file),
    list: () => fileNames(dirname(cache.path(commit, 'config.json'))),
  };
}

function modelName(repo: string): string {
  return repo.split('/').at(-1)!;
}

/** Names the bytes, not the branch that pointed to them: the same commit gives the same file. */
function origin(repo: string, commit: string): string {
  return `${repo}@${commit}`;
}

/** The files of a repository: from the cache if they are there, small ones fetched at once, weights by ranges. */
class HubFiles implements CheckpointFiles {
  readonly listing: HubListing;
  readonly modelName: string;
  readonly origin: string;
  readonly #name: HubName;
  readonly #client: HubClient;
  readonly #cache: HubCache;
  readonly #options: OpenSourceOptions;
  readonly #blocks = new BlockCache(BLOCK_CACHE_BYTES);
  /** SHA-256 of what was fetched past the cache. */
  readonly #sums = new Map<string, string>();
  readonly #ranged = new Map<string, RangeSource>();

  private constructor(
    name: HubName,
    { client, cache, listing }: { client: HubClient; cache: HubCache; listing: HubListing },
    options: OpenSourceOptions,
  ) {
    this.listing = listing;
    this.modelName = modelName(name.repo);
    this.origin = origin(name.repo, listing.commit);
    this.#name = name;
    this.#client = client;
    this.#cache = cache;
    this.#options = options;
  }

  static async open(
    name: HubName,
    environment: HubEnvironment,
    cache: HubCache,
    options: OpenSourceOptions,
  ): Promise<HubFiles> {
    const client = new HubClient(environment, options);
    const listing = await listRepository(client, name);
    if (options.cache && !options.dryRun) await cache.remember(name.revision, listing.commit);
    return new HubFiles(name, { client, cache, listing }, options);
  }

  at = (name: string): string => `${this.#options.source}: ${name}`;

  async open(name: string): Promise<FileSource | undefined> {
    const file = this.listing.files.get(name);
    if (!file) return undefined;
    const cached = await this.#cache.open(this.listing.commit, name, file.bytes);
    if (cached) return cached;
    return WEIGHTS.test(name) ? this.#openWeights(name) : this.#openText(name);
  }

  async list(): Promise<readonly string[]> {
    return [...this.listing.files.keys()].filter((name) => !name.includes('/'));
  }

  async #openText(name: string): Promise<FileSource> {
    const remote = this.#remote(name);
    const { bytes } = remote.file;
    if (bytes > MAX_TEXT_BYTES) {
      throw new CflowError('LIMIT_EXCEEDED', `${bytes} bytes, at most ${MAX_TEXT_BYTES}`, {
        file: remote.name,
      });
    }
    const { cache, dryRun, signal } = this.#options;
    if (!cache || dryRun) return this.#openWhole(remote);
    await downloadAll(this.#cache, this.listing.commit, [remote], { signal });
    return (await this.#cache.open(this.listing.commit, name, bytes))!;
  }

  async #openWeights(name: string): Promise<FileSource> {
    const remote = this.#remote(name);
    const streamed = !this.#options.cache && !this.#options.dryRun;
    if (!streamed || remote.file.sha256) {
      const source = new RangeSource(remote, this.#blocks);
      this.#ranged.set(name, source);
      return source;
    }
    if (remote.file.bytes <= MAX_WHOLE_BYTES) return this.#openWhole(remote);
    throw new CflowError('UNSUPPORTED', 'the server gives no SHA-256, so nothing could vouch for it', {
      file: remote.name,
      remedy: 'convert without --no-cache',
    });
  }

  async #openWhole(remote: RemoteFile): Promise<FileSource> {
    const bytes = await fetchWhole(remote);
    this.#sums.set(remote.file.name, createHash('sha256').update(bytes).digest('hex'));
    return { ...memorySource(bytes, remote.name), close: async () => undefined };
  }

  #remote(name: string): RemoteFile {
    const file = this.listing.files.get(name)!;
    return new RemoteFile(this.#client, { repo: this.#name.repo, commit: this.listing.commit, file });
  }

  /** The checkpoint over these files, each with what is known of its hash. */
  async checkpoint(model: string, dryRun: boolean): Promise<CheckpointSource> {
    this.#ranged.clear();
    const checkpoint = await openCheckpoint(this.#options.source, {
      model,
      dryRun,
      files: this,
      maxHeaderBytes: this.#options.maxHeaderBytes,
    });
    for (const source of this.#ranged.values()) await this.#align(source);
    return { ...checkpoint, files: checkpoint.files.map((file) => this.#described(file)) };
  }

  async #align(source: RangeSource): Promise<void> {
    if (!source.name.endsWith('.safetensors')) return;
    const { tensors } = await readSafetensorsHeader(source, this.#options.maxHeaderBytes);
    source.alignTo([...tensors.values()].map(({ offset }) => offset));
  }

  #described(file: SourceFile): SourceFile {
    const { sha256 } = this.listing.files.get(file.name)!;
    const fetched = this.#sums.get(file.name);
    if (fetched) return { ...file, sha256: fetched, remote: true };
    return { ...file, sha256, remote: this.#ranged.has(file.name) };
  }

  /** The files of a checkpoint that are not in the cache. */
  missing(checkpoint: CheckpointSource): RemoteFile[] {
    return checkpoint.files.filter(({ remote }) => remote).map(({ name }) => this.#remote(name));
  }
}
