import { crc32 } from 'node:zlib';
import { type ByteSource, CflowError, type Metadata, type ModelConfig, openModel } from '@cflow/format';
import { type Check, check, checkOptions, choice, type FileSource, openFileSource } from '@cflow/format/node';
import { ENGINE_NAMES, type EngineName } from './defaults.js';
import type { Engine, EngineFactory, EngineSession } from './engine.js';
import type { EngineOptions } from './engine-options.js';
import type { NativeRouting } from './native/addon.js';
import { nativeProblem, openNativeEngine } from './native/engine.js';
import { ENGINE_CHECKS } from './native/options.js';
import { openReferenceEngine } from './reference/engine.js';
import { Session } from './session.js';
import { TextTokenizer } from './text/tokenizer.js';

/** Engines by name. */
export const ENGINES: Readonly<Record<EngineName, EngineFactory>> = {
  native: openNativeEngine,
  reference: openReferenceEngine,
};

/** How a model is opened: by which engine, and its options. */
export interface OpenModelOptions extends EngineOptions {
  /** Absent = native where it can open the source, else reference (`Model.fallback` says why). */
  readonly engine?: EngineName | undefined;
}

/** What a model is put together from. */
export interface ModelParts {
  readonly config: ModelConfig;
  readonly engine: Engine;
  readonly metadata?: Metadata | undefined;
  readonly tokenizer?: TextTokenizer | undefined;
  /** Why there is none although the file carries one. */
  readonly tokenizerProblem?: CflowError | undefined;
  readonly fallback?: string | undefined;
  /** Called once, when the model closes. */
  readonly onClose?: () => Promise<void>;
}

const FILE: Check = {
  holds: (value) =>
    typeof value === 'string' || (typeof value === 'object' && value !== null && 'read' in value),
  expected: 'a path or a ByteSource',
};

/** Called back when an object was dropped without being closed. What it holds must not lead to the object. */
const DROPPED = new FinalizationRegistry<() => void>((release) => release());

/**
 * An opened model: its configuration, its tokenizer, and an engine that sessions run on.
 * Close it, or bind it with `await using`: a model that is never closed is freed by the garbage collector.
 */
export class Model {
  readonly config: ModelConfig;
  readonly metadata: Metadata | undefined;
  readonly tokenizer: TextTokenizer | undefined;
  readonly #parts: ModelParts;
  readonly #sessions = new Set<WeakRef<Session>>();
  #closed = false;

  constructor(parts: ModelParts) {
    this.config = parts.config;
    this.metadata = parts.metadata;
    this.tokenizer = parts.tokenizer;
    this.#parts = parts;
  }

  /**
   * Opens a .cflow or .vflow file. A source that is passed in stays the caller's to close.
   * @throws CflowError USAGE for bad options, NOT_READABLE, and whatever `openModel` finds wrong with the file
   */
  static async open(file: string | ByteSource, options: OpenModelOptions = {}): Promise<Model> {
    check('file', file, FILE);
    checkOptions(options, { engine: choice(ENGINE_NAMES), ...ENGINE_CHECKS });
    const opened = typeof file === 'string' ? await openFileSource(file) : undefined;
    try {
      const source = opened ? untilDropped(opened) : (file as ByteSource);
      return await openFrom(source, options, async () => opened?.close());
    } catch (error) {
      await opened?.close();
      throw error;
    }
  }

  /** Name of the engine. */
  get engineName(): string {
    return this.#parts.engine.name;
  }

  /** Why the reference engine serves although none was asked for; undefined if it does not. */
  get fallback(): string | undefined {
    return this.#parts.fallback;
  }

  /** The tokenizer. @throws CflowError USAGE if the file has none, UNSUPPORTED if it cannot be used */
  requireTokenizer(): TextTokenizer {
    if (this.tokenizer) return this.tokenizer;
    throw (
      this.#parts.tokenizerProblem ??
      new CflowError('USAGE', 'the file has no tokenizer', { remedy: 'use --ids' })
    );
  }

  /**
   * Starts an empty sequence. Close it when it is done: its caches are freed at once, instead of when it is collected.
   * @throws CflowError USAGE after close
   */
  createSession(): Session {
    if (this.#closed) throw new CflowError('USAGE', 'the model is closed');
    return this.adopt(this.engine.createSession());
  }

  /** The engine, for what runs several sessions together. */
  get engine(): Engine {
    return this.#parts.engine;
  }

  /** A session over a sequence of this model's engine, or over what stands in front of one; the model closes it. */
  adopt(engine: EngineSession): Session {
    const session = new Session({
      config: this.config,
      engine,
      tokenizer: this.tokenizer,
      defaults: this.metadata?.generation ?? {},
      adopt: (fork) => this.adopt(fork),
      onClose: () => forget(),
    });
    const sessions = this.#sessions;
    const known = new WeakRef(session);
    const forget = () => void sessions.delete(known);
    sessions.add(known);
    DROPPED.register(session, forget);
    return session;
  }

  /**
   * What the routers chose since the last call, of a model that was opened with `recordRoutings`; by batch and layer.
   */
  takeRoutings(): readonly NativeRouting[] {
    return this.#parts.engine.takeRoutings?.() ?? [];
  }

  /** Closes sessions, engine and file; calling it again does nothing. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    for (const session of [...this.#sessions]) await session.deref()?.close();
    await this.#parts.engine.close();
    await this.#parts.onClose?.();
  }

  /** As `close`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** A view of a file, which is closed when neither the model nor a session reads it any more. */
function untilDropped(opened: FileSource): ByteSource {
  const { name, size, fd } = opened;
  const read: ByteSource['read'] = (offset, length) => opened.read(offset, length);
  const view = { name, size, read, ...(fd === undefined ? {} : { fd }) };
  DROPPED.register(view, () => void opened.close().catch(() => undefined));
  return view;
}

async function openFrom(
  source: ByteSource,
  options: OpenModelOptions,
  onClose: () => Promise<void>,
): Promise<Model> {
  const file = await openModel(source, { crc32 });
  const fallback = options.engine ? undefined : nativeProblem(source, file);
  const name = options.engine ?? (fallback === undefined ? 'native' : 'reference');
  const engine = await ENGINES[name](source, file, options);
  // It has mapped or read the file.
  if (name === 'native') await onClose();
  const { config, metadata } = file;
  return new Model({ config, engine, metadata, ...tokenizerOf(metadata), fallback, onClose });
}

/** A tokenizer that cannot be built does not keep a model from taking ids. */
function tokenizerOf({ tokenizer }: Metadata): Pick<ModelParts, 'tokenizer' | 'tokenizerProblem'> {
  if (!tokenizer) return {};
  try {
    return { tokenizer: new TextTokenizer(tokenizer) };
  } catch (error) {
    if (error instanceof CflowError && error.code === 'UNSUPPORTED') return { tokenizerProblem: error };
    throw error;
  }
}
