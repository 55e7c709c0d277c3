/** The addon of the experiments: its surface, and how it is found. */
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { CflowError } from '@cflow/format';
import type { DiskBandwidth, DiskMeasurement } from '@cflow/runtime-native/internal/native/addon.js';

/** The same from src/runner and from dist/runner. */
const ADDON_PATH = fileURLToPath(new URL('../../build/native/cflow-bench.node', import.meta.url));

/** A product of a matrix and a vector. */
export interface MatvecCase {
  /** Id of the tiles' dtype. */
  readonly dtype: number;
  readonly arithmetic: 'f32' | 'q8';
  readonly rows: number;
  readonly cols: number;
  /** Rows of a stripe of the matrix: 128 as in files, 1 for a row-major matrix (of tiles of one row). */
  readonly stripeRows: number;
}

/** bytes / (ways * 64), the number of sets, is a power of two. */
export interface CacheGeometry {
  readonly bytes: number;
  readonly ways: number;
}

export interface CacheSimulation extends MatvecCase {
  /** Floats of the kernel's vectors: 4, 8 or 16; 0 = the kernels that are written for AVX-512 VNNI. */
  readonly width: number;
  readonly first: CacheGeometry;
  readonly second: CacheGeometry;
  /** Whether ascending lines are fetched ahead. */
  readonly prefetcher: boolean;
}

/** Reads of a data cache, simulated or counted. */
export interface CacheCounts {
  readonly reads: number;
  /** Lines that reads did not find in the first cache; in neither. */
  readonly misses: number;
  readonly missesBeyond: number;
}

/** The matrix, the vector, and the arrays of the kernel. */
export type SimulatedCounts = Readonly<Record<'weights' | 'vectors' | 'locals', CacheCounts>>;

/** Runs of one layout of a matrix. */
export interface TimedArm {
  readonly seconds: readonly number[];
  /** Read misses of the first data cache of each run; empty where the CPU does not count them. */
  readonly misses: readonly number[];
}

/** Both layouts of a matrix, timed in turns. */
export interface MatvecTiming {
  readonly tiled: TimedArm;
  readonly rowMajor: TimedArm;
  /** Whether both gave the same numbers. */
  readonly same: boolean;
  /** Why there are no misses; empty if there are. */
  readonly problem: string;
}

/** Regions of a file, read one after another. */
export interface RegionsRead extends DiskBandwidth {
  /** XOR of the words of 8 bytes of each region. */
  readonly folded: bigint;
}

/** How regions are read. */
export interface RegionsOptions extends Omit<DiskMeasurement, 'milliseconds'> {
  /** Whether a second thread goes ahead through what has come, by prefetches into the first cache. */
  readonly prefetch: boolean;
}

/** Routings to replay against the cache of experts. */
export interface CacheReplay {
  /** Experts, numbered over all layers, call by call and token by token. */
  readonly keys: Int32Array;
  /** Experts of each call of a token: one call a layer. */
  readonly calls: Int32Array;
  /** The number of the first expert of each layer, and of all of them. */
  readonly firstKeys: Int32Array;
  /** Experts that memory holds; at least those of the calls in flight. */
  readonly slots: number;
  /** Calls whose experts are kept at the same time: expertDelay + 1. */
  readonly inFlight: number;
  /** As NativeDirectOptions.halfLife; Infinity = LFU. */
  readonly halfLife: number;
  /** As the engine does: what the latest token of a layer chose is worth more. */
  readonly repeat: boolean;
}

/** What the compiled addon exports. Errors are those that `answered` understands. */
export interface BenchAddon {
  /**
   * Reads regions, pairs of offset and length, in their order, and each byte once it has come; what the page cache has
   * of them is forgotten before. `fd` may be closed when the promise has settled. Rejects as diskBandwidth.
   */
  readRegions(fd: number, regions: Float64Array, options: RegionsOptions): Promise<RegionsRead>;
  /** Experts that calls find in the cache, which begins empty, and that they do not; throws USAGE. */
  simulateCache(replay: CacheReplay): Promise<{ readonly hits: number; readonly misses: number }>;
  /** What the kernel's addresses cost in caches that begin empty; rejects with USAGE. */
  simulateMatvec(simulation: CacheSimulation): Promise<SimulatedCounts>;
  /** One thread: the matrix in stripes of 128 rows and in those of the case, in turns, `runs` times. */
  timeMatvec(options: MatvecCase & { readonly isa: string; readonly runs: number }): Promise<MatvecTiming>;
}

/** The addon. @throws CflowError UNSUPPORTED without it, and why */
export function requireBenchAddon(): BenchAddon {
  try {
    return createRequire(import.meta.url)(ADDON_PATH) as BenchAddon;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const problem = code === 'MODULE_NOT_FOUND' ? 'it has not been built' : message.split('\n')[0]!;
    throw new CflowError('UNSUPPORTED', `no native addon of the experiments: ${problem}`, {
      remedy: 'npm rebuild @cflow/bench builds it, with make and a C++20 compiler',
    });
  }
}
