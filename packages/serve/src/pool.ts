/** Models within one memory budget: loaded on demand, the one used longest ago unloaded. */
import { crc32 } from 'node:zlib';
import { CflowError, openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import {
  type EngineStats,
  Model,
  type OpenModelOptions,
  Scheduler,
  type SchedulerOptions,
  type SchedulerStats,
} from '@cflow/runtime-native';
import { ApiError } from './errors.js';
import { PromptEncoder } from './prompt.js';

/** A model that the server offers. */
export interface ModelSpec {
  /** Name in requests. */
  readonly id: string;
  readonly path: string;
}

/** What the head of a model's file says. */
export interface ModelInfo extends ModelSpec {
  /** Tokens of prompt and answer. */
  readonly contextLength: number;
  /** Whether it has a chat template. */
  readonly chat: boolean;
  readonly fileBytes: number;
}

/** A model in memory. */
export interface LoadedModel {
  readonly info: ModelInfo;
  readonly model: Model;
  readonly encoder: PromptEncoder;
  readonly scheduler: Scheduler;
}

/** What a model did so far. */
export interface ModelFigures extends SchedulerStats {
  readonly id: string;
  readonly engine: EngineStats;
}

/** Figures of a model; those of its engine are asked of a session. */
export function figuresOf({ info, model, scheduler }: LoadedModel): ModelFigures {
  const session = model.createSession();
  const engine = session.stats();
  void session.close();
  return { id: info.id, ...scheduler.stats(), engine };
}

/** A model that stays in memory until the lease is over. */
export interface Lease extends LoadedModel {
  release(): void;
}

/** How a pool opens models. */
export interface PoolOptions {
  /** Bytes that the models may take together, by their files and the KV caches that they keep. */
  readonly room: number;
  readonly open?: OpenModelOptions | undefined;
  readonly scheduler?: SchedulerOptions | undefined;
  /** Told of models that are loaded and unloaded. */
  readonly onChange?: ((event: 'loaded' | 'unloaded', id: string, ms: number) => void) | undefined;
}

interface Entry {
  readonly info: ModelInfo;
  loading: Promise<LoadedModel> | undefined;
  loaded: LoadedModel | undefined;
  leases: number;
  /** Order of use. */
  used: number;
}

/**
 * Reads the heads of the files.
 * @throws CflowError as openFileSource and openModel, and USAGE for two models of one name
 */
export async function readModels(specs: readonly ModelSpec[]): Promise<ModelInfo[]> {
  const twice = specs.find(({ id }, i) => specs.findIndex((other) => other.id === id) !== i);
  if (twice) {
    throw new CflowError('USAGE', `two models have the name "${twice.id}"`, { remedy: 'write NAME=FILE' });
  }
  return Promise.all(specs.map(readInfo));
}

async function readInfo(spec: ModelSpec): Promise<ModelInfo> {
  const source = await openFileSource(spec.path);
  try {
    const { config, metadata } = await openModel(source, { crc32 });
    const chat = metadata.tokenizer?.chatTemplate !== undefined;
    return { ...spec, contextLength: config.contextLength, chat, fileBytes: source.size };
  } finally {
    await source.close();
  }
}

/** The models of a server. */
export class ModelPool {
  readonly #entries: ReadonlyMap<string, Entry>;
  readonly #options: PoolOptions;
  /** Loads one after the other: two at once would both take the memory that is left. */
  #turn: Promise<unknown> = Promise.resolve();
  #clock = 0;
  #onRelease: (() => void) | undefined;

  constructor(infos: readonly ModelInfo[], options: PoolOptions) {
    const entry = (info: ModelInfo): Entry => ({
      info,
      loading: undefined,
      loaded: undefined,
      leases: 0,
      used: 0,
    });
    this.#entries = new Map(infos.map((info) => [info.id, entry(info)]));
    this.#options = options;
  }

  /** The models, and those in memory. */
  get models(): { readonly info: ModelInfo; readonly loaded: LoadedModel | undefined }[] {
    return [...this.#entries.values()].map(({ info, loaded }) => ({ info, loaded }));
  }

  /** @throws ApiError 404 */
  info(id: string): ModelInfo {
    return this.#entry(id).info;
  }

  /**
   * A model, loaded if it is not. Waits while others that are in use take the memory.
   * @throws ApiError 404, CflowError as Model.open
   */
  async acquire(id: string): Promise<Lease> {
    const entry = this.#entry(id);
    entry.leases++;
    entry.used = ++this.#clock;
    try {
      entry.loading ??= this.#load(entry);
      const loaded = await entry.loading;
      let released = false;
      const release = () => {
        if (released) return;
        released = true;
        this.#release(entry);
      };
      return { ...loaded, release };
    } catch (error) {
      this.#release(entry);
      throw error;
    }
  }

  /** Closes all models; nobody may use one any more. */
  async close(): Promise<void> {
    await this.#turn;
    for (const entry of this.#entries.values()) if (entry.loaded) await this.#unload(entry);
  }

  #entry(id: string): Entry {
    const entry = this.#entries.get(id);
    if (entry) return entry;
    const known = [...this.#entries.keys()].join(', ');
    throw new ApiError(`there is no model "${id.slice(0, 100)}"; there are ${known}`, {
      status: 404,
      type: 'invalid_request_error',
      code: 'model_not_found',
      param: 'model',
    });
  }

  #release(entry: Entry): void {
    entry.leases--;
    if (entry.leases === 0) this.#onRelease?.();
  }

  #load(entry: Entry): Promise<LoadedModel> {
    const loading = this.#turn.then(() => this.#open(entry));
    // What failed is tried again by the next request.
    this.#turn = loading.catch(() => {
      entry.loading = undefined;
    });
    return loading;
  }

  async #open(entry: Entry): Promise<LoadedModel> {
    const { open, scheduler, onChange } = this.#options;
    await this.#makeRoom(this.#need(entry));
    const start = performance.now();
    const model = await Model.open(entry.info.path, open);
    const loaded = {
      info: entry.info,
      model,
      encoder: new PromptEncoder(model),
      scheduler: new Scheduler(model, scheduler),
    };
    entry.loaded = loaded;
    onChange?.('loaded', entry.info.id, performance.now() - start);
    return loaded;
  }

  /** Bytes of a model's weights, and of the KV caches that it keeps. */
  #need({ info }: Entry): number {
    return info.fileBytes + (this.#options.scheduler?.cacheMemory ?? 0);
  }

  /** Unloads until a model fits beside the others, or is alone: what does not fit even then is offloaded to disk. */
  async #makeRoom(need: number): Promise<void> {
    for (;;) {
      const loaded = [...this.#entries.values()].filter((entry) => entry.loaded);
      const taken = loaded.reduce((sum, each) => sum + this.#need(each), 0);
      if (loaded.length === 0 || taken + need <= this.#options.room) return;
      const [idle] = loaded.filter(({ leases }) => leases === 0).sort((a, b) => a.used - b.used);
      if (idle) await this.#unload(idle);
      else await new Promise<void>((resolve) => (this.#onRelease = resolve));
    }
  }

  async #unload(entry: Entry): Promise<void> {
    const { loaded, info } = entry;
    entry.loaded = undefined;
    entry.loading = undefined;
    const start = performance.now();
    await loaded?.encoder.close();
    await loaded?.scheduler.close({ abort: true });
    await loaded?.model.close();
    this.#options.onChange?.('unloaded', info.id, performance.now() - start);
  }
}
