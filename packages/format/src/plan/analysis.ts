/** Folds over the plan: bytes on the critical path, memory, barriers. */
import type { ModelConfig } from '../model/config.js';
import {
  elements,
  layerStreams,
  modelStreams,
  partTensors,
  type Stream,
  streamBytes,
} from '../model/streams.js';
import { DTYPES, type Dtype } from '../tiles/dtype.js';
import { buildPlan, firstAsked } from './build.js';
import { stepRun } from './steps.js';
import type { ExecutionPlan } from './types.js';

/** Bytes of the three streams of a layer; `expert` counts the top-k experts of a token. */
export interface StreamBytes {
  readonly attention: number;
  readonly dense: number;
  readonly expert: number;
}

/** Sums over the effective layers, in bytes per token (report §4.5.1). */
export interface PathTotals {
  /** Σ max(attention, dense, expert). */
  readonly naive: number;
  /** Σ max(attention, dense / (δd + 1), expert / (δe + 1)), Eq. 4.23. */
  readonly critical: number;
  /** Σ attention + dense + expert. */
  readonly serial: number;
  /** naive / critical. */
  readonly reduction: number;
}

/** One effective layer; `layer` is the stored layer whose weights it reads. */
export interface LayerPath {
  readonly layer: number;
  /** Projections only, at the dtype's bytes per weight without scales and headers: the report's figure. */
  readonly nominal: StreamBytes & { readonly naive: number; readonly critical: number };
  /** Whole streams as stored: norms, scales and tile headers included. */
  readonly disk: StreamBytes & { readonly naive: number; readonly critical: number };
}

/** Weight bytes on the critical path of one token, layer by layer and in sum, with the delays and without. */
export interface CriticalPath {
  readonly dtype: Dtype;
  readonly layers: readonly LayerPath[];
  readonly nominal: PathTotals;
  readonly disk: PathTotals;
  /** Nominal bytes of one pass with each stored weight once: less than serial where weights are shared (arch5). */
  readonly unique: StreamBytes;
  /** Bytes on disk that one token reads: every stream that the plan asks for once, and the top-k experts. */
  readonly bytesPerToken: number;
}

/** Critical-path analysis of report §4.5.1, nominal and on disk. */
export function criticalPath(config: ModelConfig, dtype: Dtype): CriticalPath {
  const plan = buildPlan(config, { transfers: 'overlap' });
  const { nominalBytes } = DTYPES[dtype];
  const stored = config.layers.map((layer, index) => {
    const streams = layerStreams(config, layer, index);
    const top = layer.experts?.topK ?? 0;
    return {
      nominal: withPaths(
        config,
        perStream(streams, top, (stream) => weights(stream) * nominalBytes),
      ),
      disk: withPaths(
        config,
        perStream(streams, top, (stream) => streamBytes(stream, dtype)),
      ),
    };
  });
  const times = Array.from({ length: config.iterations ?? 1 });
  const layers = stored.flatMap((own, layer) => times.map(() => ({ layer, ...own })));
  return {
    dtype,
    layers,
    nominal: totals(layers.map(({ nominal }) => nominal)),
    disk: totals(layers.map(({ disk }) => disk)),
    unique: sumStreams(stored.map(({ nominal }) => nominal)),
    bytesPerToken: bytesAsked(plan, dtype) + sumStreams(stored.map(({ disk }) => disk)).expert,
  };
}

function perStream(streams: readonly Stream[], topK: number, bytes: (stream: Stream) => number): StreamBytes {
  const of = (kind: Stream['kind']) => {
    const stream = streams.find((candidate) => candidate.kind === kind);
    return stream ? bytes(stream) : 0;
  };
  return { attention: of('attention'), dense: of('dense'), expert: topK * of('expert') };
}

/** Matrix weights of a stream. */
function weights(stream: Stream): number {
  const tensors = stream.parts.flatMap(partTensors).filter(({ matrix }) => matrix);
  return tensors.reduce((sum, { shape }) => sum + elements(shape), 0);
}

function withPaths({ denseDelay, expertDelay }: ModelConfig, bytes: StreamBytes) {
  const { attention, dense, expert } = bytes;
  return {
    ...bytes,
    naive: Math.max(attention, dense, expert),
    critical: Math.max(attention, dense / (denseDelay + 1), expert / (expertDelay + 1)),
  };
}

function sumStreams(layers: readonly StreamBytes[]): StreamBytes {
  const sum = (key: keyof StreamBytes) => layers.reduce((total, layer) => total + layer[key], 0);
  return { attention: sum('attention'), dense: sum('dense'), expert: sum('expert') };
}

function totals(layers: readonly (StreamBytes & { naive: number; critical: number })[]): PathTotals {
  const { attention, dense, expert } = sumStreams(layers);
  const naive = layers.reduce((sum, layer) => sum + layer.naive, 0);
  const critical = layers.reduce((sum, layer) => sum + layer.critical, 0);
  return { naive, critical, serial: attention + dense + expert, reduction: naive / critical };
}

function bytesAsked(plan: ExecutionPlan, dtype: Dtype): number {
  const asked = new Set(firstAsked(plan));
  return modelStreams(plan.config)
    .filter(({ name }) => asked.has(name))
    .reduce((sum, stream) => sum + streamBytes(stream, dtype), 0);
}

/** Bytes that a session needs. */
export interface MemoryEstimate {
  /** All streams of the model as stored, experts included. */
  readonly weights: number;
  /** Key/value caches for `contextLength` positions; a sliding window holds no more than itself. */
  readonly kvCache: { readonly f32: number; readonly f16: number };
  /** The buffers of the plan, f32. */
  readonly workingSet: number;
}

/**
 * What a model needs in memory.
 * @param contextLength positions of the caches; the model's own by default
 */
export function memoryEstimate(
  config: ModelConfig,
  dtype: Dtype,
  contextLength: number = config.contextLength,
): MemoryEstimate {
  const plan = buildPlan(config, { transfers: 'none' });
  const positions = ({ window = contextLength }) => Math.min(window, contextLength);
  const values = plan.caches.reduce((sum, cache) => sum + 2 * cache.width * positions(cache), 0);
  return {
    weights: modelStreams(config).reduce((sum, stream) => sum + streamBytes(stream, dtype), 0),
    kvCache: { f32: 4 * values, f16: 2 * values },
    workingSet: 4 * plan.buffers.reduce((sum, { length }) => sum + length, 0),
  };
}

/**
 * How often all threads wait for one another in a token: once for each phase with parallel steps.
 * @param delayAware false: as if every parallel step had a phase of its own, in program order
 */
export function barriersPerToken({ steps }: ExecutionPlan, { delayAware = true } = {}): number {
  const parallel = steps.filter((step) => stepRun(step) === 'parallel');
  return delayAware ? new Set(parallel.map(({ phase }) => phase)).size : parallel.length;
}
