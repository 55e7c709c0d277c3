/** The compiled addon: its surface, how it is found, and how its errors become ours. */
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { asCflowError, asKnownCode, CflowError } from '@cflow/format/stripes';
import type { NativeProgram } from './program.js';

/** Same place from src/native and from dist/native. */
const ADDON_PATH = fileURLToPath(new URL('../../build/native/cflow.node', import.meta.url));

/** Instruction sets of the kernels. */
export interface NativeIsa {
  /** The best of `available`. */
  readonly selected: string;
  /** Instruction sets that the build has and the CPU can run, best first. */
  readonly available: readonly string[];
}

/** Numbers of the tile as the kernels have them; packages/format states the same. */
export interface TileConstants {
  readonly tileRows: number;
  readonly tileCols: number;
  readonly tileHeaderBytes: number;
  /** By quant_type: data bytes and scales of a row of a full tile; bytes of a stripe of 77 rows and 557 columns. */
  readonly dtypes: Readonly<
    Record<
      number,
      { readonly rowBytes: number; readonly rowScales: number; readonly raggedStripeBytes: number }
    >
  >;
}

/** How blocks are read. */
export interface IoChoice {
  /** Bytes; a multiple of 4,096. */
  readonly block: number;
  /** Blocks under way at once. */
  readonly depth: number;
  readonly backend: 'auto' | 'uring' | 'threads';
  /** `auto`: O_DIRECT, buffered where the file system refuses it. */
  readonly mode: 'auto' | 'buffered';
}

/** Of weights that are fetched while the model runs. */
export interface NativeDirectOptions extends IoChoice {
  /** Experts that memory holds. */
  readonly expertSlots: number;
  /** Fetched streams that memory holds. */
  readonly streamSlots: number;
  /** Tokens after which half of an expert's frequency is forgotten; 0 = LRU. */
  readonly halfLife: number;
  /** Fetch streams before they are called. */
  readonly readAhead: boolean;
}

/** Of keys and values that may be more than memory holds. */
export interface NativeSpillOptions {
  /** Bytes of memory for those of a session. */
  readonly cacheMemory: number;
  /** Where the rest goes: a file without a name. */
  readonly directory: string;
}

/** Options of the native engine, all of them decided. */
export interface NativeEngineOptions {
  readonly weights: 'mapped' | 'resident' | 'direct';
  readonly arithmetic: 'f32' | 'q8';
  readonly cache: 'f32' | 'f16';
  /** Threads that compute, 1 to 1024. */
  readonly threads: number;
  /** Threads share every phase, also those that are too short to gain from it. */
  readonly shareShort: boolean;
  /** Tokens of one batch of a prefill. */
  readonly maxBatch: number;
  /** Empty = the best. */
  readonly isa: string;
  readonly profile: boolean;
  /** Keep what routings chose, for `takeRoutings`. */
  readonly recordRoutings: boolean;
  /** Read with weights `direct` only. */
  readonly direct?: NativeDirectOptions;
  /** Absent: all keys and values are in memory. */
  readonly spill?: NativeSpillOptions;
}

/** Figures of the disk tier; zeros without one. */
export interface NativeTierStats {
  /** Experts that memory holds, and its bytes. */
  readonly slots: number;
  readonly slotBytes: number;
  /** Memory for fetched streams. */
  readonly streamBytes: number;
  /** Experts that were called: found in memory, on their way by a prediction, and neither. */
  readonly hits: number;
  readonly predicted: number;
  readonly misses: number;
  /** Experts that were read on a prediction, whether it came true or not. */
  readonly ahead: number;
  /** Spent waiting for the disk, summed over threads. */
  readonly stallSeconds: number;
  readonly bytesRead: number;
  readonly blocks: number;
  /** Time during which the disk had something to do. */
  readonly busySeconds: number;
  /** Bytes of keys and values that were written to disk, and read back. */
  readonly cacheWritten: number;
  readonly cacheRead: number;
  /** Spent waiting for either, summed over threads; and with either under way. */
  readonly cacheStallSeconds: number;
  readonly cacheBusySeconds: number;
  /** Why these are not O_DIRECT, not io_uring, or not on a disk at all; empty if all is well. */
  readonly cacheReason: string;
  readonly direct: boolean;
  readonly uring: boolean;
  /** Why not O_DIRECT, or not io_uring; empty if both. */
  readonly reason: string;
}

/** What a batch chose of the experts of the `bank`-th layer that has any. */
export interface NativeRouting {
  readonly bank: number;
  /** Position of the first token. */
  readonly position: number;
  readonly topK: number;
  /** [tokens, topK]. */
  readonly experts: Uint16Array;
}

/** Time of one kind of step. */
export interface ProfileEntry {
  readonly name: string;
  readonly calls: number;
  /** Summed over threads. */
  readonly seconds: number;
  /** Weight bytes read. */
  readonly bytes: number;
}

/** Figures of the native engine over all sessions; bytes. */
export interface NativeEngineStats {
  readonly weightBytes: number;
  readonly scratchBytes: number;
  readonly barriersPerToken: number;
  /** Phases of the last decoded token that threads shared; all until there was one. */
  readonly sharedPhases: number;
  /** Weight bytes that steps have read so far. */
  readonly bytesRead: number;
  /** Empty unless the engine was opened with `profile`. */
  readonly profile: readonly ProfileEntry[];
  readonly tiers: NativeTierStats;
}

/** Methods throw and reject with errors that `nativeError` understands. */
export interface SessionHandle {
  /**
   * Passes tokens through the model. `logits` takes the program's output for the last token, or [ids.length, its length] with `all`.
   * One call at a time.
   */
  run(ids: Int32Array, logits: Float32Array, all: boolean): Promise<void>;
  /** Goes back to the first `position` tokens, or as far as the caches allow; resolves to the position reached. */
  truncate(position: number): Promise<number>;
  /** A second sequence with the same tokens. */
  fork(): SessionHandle;
  /** Makes a job that waits or runs end with INTERRUPTED; one that has ended is not affected, nor is the next. */
  cancel(): void;
  /** Bytes of the caches so far. */
  cacheBytes(): number;
  /** Cancels what runs and frees the caches. */
  close(): Promise<void>;
}

/** What one session of a batch passes. */
export interface NativeRun {
  readonly session: SessionHandle;
  readonly ids: Int32Array;
  /** Takes the logits, as `SessionHandle.run`; absent = none are computed. */
  readonly logits?: Float32Array | undefined;
  readonly all: boolean;
}

/** A program with its weights, in native code. Methods throw as those of SessionHandle. */
export interface EngineHandle {
  /** A new sequence. */
  createSession(): SessionHandle;
  /** Passes tokens of several sessions together; resolves to undefined or an error for each. */
  runBatch(runs: readonly NativeRun[]): Promise<(Error | undefined)[]>;
  /** Figures so far. */
  stats(): NativeEngineStats;
  /** What was recorded since the last call. */
  takeRoutings(): NativeRouting[];
  /** Cancels what runs and frees everything, sessions included. */
  close(): Promise<void>;
}

/** How to measure a disk. */
export interface DiskMeasurement {
  /** Bytes of one read; a multiple of 4,096. */
  readonly block: number;
  /** Reads under way at once, 1 to 256. */
  readonly depth: number;
  /** About how long to measure. */
  readonly milliseconds: number;
  readonly backend: 'auto' | 'uring' | 'threads';
  /** `auto`: past the page cache where the file system allows it. */
  readonly mode: 'auto' | 'buffered';
}

/** What reading from a disk gave. */
export interface DiskBandwidth {
  readonly bytes: number;
  readonly seconds: number;
  readonly direct: boolean;
  readonly uring: boolean;
  /** Why not direct, or not io_uring; empty if both. */
  readonly reason: string;
}

/** What the compiled addon exports. */
export interface Addon {
  /** Which instruction sets there are. */
  isa(): NativeIsa;
  /** The tile as the kernels have it. */
  constants(): TileConstants;
  /** Bytes that can still be allocated: what the system and the cgroup limits leave; 2^64 where nothing says. */
  availableMemory(): number;
  /** `fd` may be closed when the promise has settled. */
  openEngine(
    fd: number,
    size: number,
    program: NativeProgram,
    options: NativeEngineOptions,
  ): Promise<EngineHandle>;
  /** Reads `bytes` of memory of its own, a share by each thread, `runs` times; GB/s (10^9 bytes) of each run. */
  readBandwidth(bytes: number, threads: number, runs: number): Promise<number[]>;
  /**
   * Reads blocks at random places of a file of `size` bytes. `fd` may be closed when the promise has settled.
   * Throws USAGE; rejects with LIMIT_EXCEEDED, MEMORY and NOT_READABLE.
   */
  diskBandwidth(fd: number, size: number, options: DiskMeasurement): Promise<DiskBandwidth>;
}

type Loaded = { readonly addon: Addon } | { readonly problem: string };
let loaded: Loaded | undefined;

function load(): Loaded {
  try {
    return { addon: createRequire(import.meta.url)(ADDON_PATH) as Addon };
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    return { problem: code === 'MODULE_NOT_FOUND' ? 'it has not been built' : message.split('\n')[0]! };
  }
}

/** The addon; undefined where it has not been built or cannot be loaded. */
export function loadAddon(): Addon | undefined {
  loaded ??= load();
  return 'addon' in loaded ? loaded.addon : undefined;
}

/** The addon. @throws CflowError UNSUPPORTED without it, and why */
export function requireAddon(): Addon {
  const addon = loadAddon();
  if (addon) return addon;
  throw new CflowError('UNSUPPORTED', `no native addon: ${addonProblem()}`, {
    remedy: 'npm rebuild @cflow/runtime-native builds it, with make and a C++20 compiler',
  });
}

/** Why there is no addon; empty if there is one. */
export function addonProblem(): string {
  loaded ??= load();
  return 'problem' in loaded ? loaded.problem : '';
}

/** An error of the addon as a CflowError; `file` is what it was about. */
export function nativeError(error: unknown, file?: string): CflowError {
  if (!(error instanceof Error) || !('code' in error) || error instanceof CflowError)
    return asCflowError(error);
  const remedy = 'remedy' in error ? String(error.remedy) : undefined;
  return new CflowError(asKnownCode(error.code), error.message, { file, remedy, cause: error });
}
