/** The native engine: plans lowered to programs, executed by the addon. */
import { setImmediate } from 'node:timers/promises';
import { type ByteSource, buildPlan, CflowError, type ModelFile, ownDtypes } from '@cflow/format';
import {
  type BatchOutcome,
  type BatchRun,
  type Engine,
  type EngineFactory,
  type EngineSession,
  type EngineStats,
  interrupt,
  interruption,
  type RunOptions,
} from '../engine.js';
import { chooseTiers, type TierChoice } from '../tiers/choose.js';
import {
  type Addon,
  addonProblem,
  type EngineHandle,
  loadAddon,
  type NativeEngineOptions,
  type NativeRun,
  nativeError,
  type SessionHandle,
} from './addon.js';
import { lowerPlan } from './lower.js';
import { type ResolvedOptions, resolveOptions } from './options.js';
import { checkCacheMemory, checkSpillDirectory } from './spill.js';

/** Tokens of one call when the logits of all of them are wanted: bounds the memory for logits. */
const LOGITS_SLICE = 32;

/** The descriptor of the file behind a source, if there is one. */
export function fileDescriptor(source: ByteSource): number | undefined {
  return 'fd' in source && typeof source.fd === 'number' ? source.fd : undefined;
}

/** Why the native engine cannot open `source`; undefined if it can. */
export function nativeProblem(source: ByteSource, file: ModelFile): string | undefined {
  if (addonProblem()) return addonProblem();
  if (ownDtypes(file)) return 'its matrices have several dtypes';
  return fileDescriptor(source) === undefined ? 'the model is not a file' : undefined;
}

/**
 * Opens the native engine over a file.
 * @throws CflowError UNSUPPORTED without the addon or a file, USAGE for bad options (an unknown CFLOW_ISA names those
 * there are), MEMORY, NOT_READABLE, WRITE_FAILED (keys and values cannot go to disk)
 */
export const openNativeEngine: EngineFactory = async (source, file, options) => {
  const addon = loadAddon();
  const fd = fileDescriptor(source);
  const problem = nativeProblem(source, file);
  if (!addon || fd === undefined || problem !== undefined) {
    throw new CflowError('UNSUPPORTED', `native engine not available: ${problem}`, {
      file: source.name,
      remedy: 'use the engine reference',
    });
  }
  const resolved = await resolveOptions(file.dtype, options);
  checkIsa(addon, resolved.isa);
  const opened = { name: source.name, fd, size: source.size };
  const tiers = await guardedAsync(source.name, () => chooseTiers(addon, opened, file, resolved, options));
  const { choice, transfers, placement, maxBatch, cacheMemory, direct } = tiers;
  // Turns of the event loop between the parts, so that opening a model of many streams holds nothing up for long.
  await setImmediate();
  // Routings are noted where experts are called.
  const planned = transfers === 'none' && resolved.recordRoutings ? 'overlap' : transfers;
  const plan = buildPlan(file.config, { transfers: planned });
  const { program } = lowerPlan(plan, file, { ...resolved, placement });
  checkCacheMemory(plan, resolved.cache, options);
  if (cacheMemory || options.spillDirectory) await checkSpillDirectory(resolved.spillDirectory);
  await setImmediate();
  const spill = cacheMemory ? { cacheMemory, directory: resolved.spillDirectory } : undefined;
  const placed = { ...(direct && { direct }), ...(spill && { spill }) };
  const native = { ...resolved, weights: choice.weights, maxBatch, ...placed };
  const handle = await guardedAsync(source.name, () => addon.openEngine(fd, source.size, program, native));
  const isa = resolved.isa || addon.isa().selected;
  return new NativeEngine(handle, { ...native, choice, isa }, source.name, file.config.vocabSize);
};

/** What the addon throws or rejects with, as a CflowError. */
async function guardedAsync<T>(file: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw nativeError(error, file);
  }
}

function guarded<T>(file: string, work: () => T): T {
  try {
    return work();
  } catch (error) {
    throw nativeError(error, file);
  }
}

function checkIsa(addon: Addon, isa: string): void {
  const { available } = addon.isa();
  if (isa === '' || available.includes(isa)) return;
  throw new CflowError('USAGE', `instruction set ${JSON.stringify(isa)} is unknown, or this CPU lacks it`, {
    field: 'CFLOW_ISA',
    value: isa,
    remedy: `available: ${available.join(', ')}`,
  });
}

/** What all sessions of an engine share of its figures. */
type EngineFigures = Omit<EngineStats, 'cacheBytes'>;

type OpenedOptions = ResolvedOptions & Pick<NativeEngineOptions, 'weights'> & { readonly choice: TierChoice };

class NativeEngine implements Engine {
  readonly name = 'native';
  readonly #handle: EngineHandle;
  readonly #options: OpenedOptions;
  readonly #file: string;
  readonly #vocabSize: number;

  constructor(handle: EngineHandle, options: OpenedOptions, file: string, vocabSize: number) {
    this.#handle = handle;
    this.#options = options;
    this.#file = file;
    this.#vocabSize = vocabSize;
  }

  async runBatch(runs: readonly BatchRun[]): Promise<BatchOutcome[]> {
    const members = runs.map((run) => nativeMember(run));
    const waiting = members.filter(({ signal }) => !signal?.aborted);
    const stops = waiting.map(({ session, signal }) => onAbort(signal, () => session.handle.cancel()));
    try {
      const errors = await guardedAsync(this.#file, () => this.#handle.runBatch(waiting.map(nativeRun)));
      const ended = new Map(waiting.map((member, i) => [member, errors[i]]));
      return members.map((member) => {
        const error = ended.has(member) ? ended.get(member) : interruption(member.signal!);
        return error ? { error: nativeError(error, this.#file) } : { logits: member.logits };
      });
    } finally {
      for (const stop of stops) stop();
    }
  }

  createSession(): EngineSession {
    const stats = () => this.#stats();
    return new NativeSession(
      guarded(this.#file, () => this.#handle.createSession()),
      this.#vocabSize,
      this.#file,
      stats,
    );
  }

  takeRoutings() {
    return guarded(this.#file, () => this.#handle.takeRoutings());
  }

  close(): Promise<void> {
    return guardedAsync(this.#file, () => this.#handle.close());
  }

  #stats(): EngineFigures {
    const { weightBytes, ...figures } = guarded(this.#file, () => this.#handle.stats());
    const { isa, threads, shareShort, threadsReason, weights, choice, arithmetic, cache } = this.#options;
    const chosen = { isa, threads, shareShort, threadsReason, weights, choice, arithmetic, cache };
    return { weightBytes, native: { ...chosen, ...figures } };
  }
}

/** A run of a batch, with where its logits go. */
interface Member {
  readonly session: NativeSession;
  readonly ids: readonly number[];
  readonly signal: AbortSignal | undefined;
  readonly logits: Float32Array | undefined;
}

function nativeMember({ session, ids, logits = true, signal }: BatchRun): Member {
  if (!(session instanceof NativeSession))
    throw new CflowError('USAGE', 'a session of another engine is in the batch');
  return { session, ids, signal, logits: logits ? session.last : undefined };
}

const nativeRun = ({ session, ids, logits }: Member): NativeRun => ({
  session: session.handle,
  ids: Int32Array.from(ids),
  ...(logits ? { logits } : {}),
  all: false,
});

/** Calls back once the signal is aborted; returns what takes that back. */
function onAbort(signal: AbortSignal | undefined, stop: () => void): () => void {
  signal?.addEventListener('abort', stop, { once: true });
  return () => signal?.removeEventListener('abort', stop);
}

class NativeSession implements EngineSession {
  readonly #handle: SessionHandle;
  readonly #vocabSize: number;
  readonly #file: string;
  readonly #engineStats: () => EngineFigures;
  readonly #last: Float32Array;

  constructor(handle: SessionHandle, vocabSize: number, file: string, engineStats: () => EngineFigures) {
    this.#handle = handle;
    this.#vocabSize = vocabSize;
    this.#file = file;
    this.#engineStats = engineStats;
    this.#last = new Float32Array(vocabSize);
  }

  get handle(): SessionHandle {
    return this.#handle;
  }

  /** Where the logits of the last token go. */
  get last(): Float32Array {
    return this.#last;
  }

  fork(): EngineSession {
    const handle = guarded(this.#file, () => this.#handle.fork());
    return new NativeSession(handle, this.#vocabSize, this.#file, this.#engineStats);
  }

  async run(ids: readonly number[], { signal, onLogits }: RunOptions = {}): Promise<Float32Array> {
    interrupt(signal);
    const stop = onAbort(signal, () => this.#handle.cancel());
    try {
      if (onLogits) await this.#runAll(ids, onLogits, signal);
      else await this.#pass(ids, this.#last, false);
      return this.#last;
    } finally {
      stop();
    }
  }

  truncate(position: number): Promise<number> {
    return guardedAsync(this.#file, () => this.#handle.truncate(position));
  }

  stats() {
    return { ...this.#engineStats(), cacheBytes: guarded(this.#file, () => this.#handle.cacheBytes()) };
  }

  close(): Promise<void> {
    return guardedAsync(this.#file, () => this.#handle.close());
  }

  #pass(ids: readonly number[], logits: Float32Array, all: boolean): Promise<void> {
    return guardedAsync(this.#file, () => this.#handle.run(Int32Array.from(ids), logits, all));
  }

  /** What `onLogits` throws is the caller's, and stays as it is. */
  async #runAll(
    ids: readonly number[],
    onLogits: NonNullable<RunOptions['onLogits']>,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const size = this.#vocabSize;
    const rows = new Float32Array(Math.min(ids.length, LOGITS_SLICE) * size);
    for (let from = 0; from < ids.length; from += LOGITS_SLICE) {
      interrupt(signal);
      const slice = ids.slice(from, from + LOGITS_SLICE);
      await this.#pass(slice, rows, true);
      for (let i = 0; i < slice.length; i++) onLogits(from + i, rows.subarray(i * size, (i + 1) * size));
      this.#last.set(rows.subarray((slice.length - 1) * size, slice.length * size));
    }
  }
}
