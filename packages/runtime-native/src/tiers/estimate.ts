/** What a model needs of memory and disk, from its plan and file: PIPO's W, C and M, in bytes. */
import { type ExecutionPlan, elements, type ModelFile, streamPieces } from '@cflow/format';
import { bankLayers, expertRegions } from '../native/tiers.js';

/** A weight stream that every token reads. */
export interface StreamSize {
  readonly name: string;
  readonly bytes: number;
  /** Embedding, final norm or LM head: not of a layer. */
  readonly vocabulary: boolean;
}

export interface ExpertSizes {
  /** Experts of all layers. */
  readonly count: number;
  /** The largest. */
  readonly bytes: number;
  /** Experts that a token uses in all layers. */
  readonly perToken: number;
  /** Of one layer, the most: experts, and those that a token uses. */
  readonly layerCount: number;
  readonly topK: number;
  /** Layers whose experts are called and not yet computed, at most: expertDelay + 1. */
  readonly layersInFlight: number;
}

export interface ModelSizes {
  readonly fileBytes: number;
  /** Norms, biases and routers: a few MB, in memory whatever is fetched. */
  readonly plainBytes: number;
  /** Streams with matrices, without experts and an embedding that is only looked up. */
  readonly streams: readonly StreamSize[];
  /** Undefined for a model without. */
  readonly experts: ExpertSizes | undefined;
  /** Bytes of an embedding of which a token reads one row. */
  readonly lookedUp: number;
  /** Key/value bytes of `context` positions: C. */
  readonly cacheBytes: number;
  /** What of these must be in memory while the rest is on disk; absent = all. */
  readonly leastCacheBytes?: number;
  /** Vectors of one token; its logits, which only the last of a batch has, left out. */
  readonly tokenBytes: number;
}

/** @param valueBytes of a cached key or value */
export function modelSizes(
  plan: ExecutionPlan,
  file: ModelFile,
  context: number,
  valueBytes: number,
): ModelSizes {
  const { tiedEmbeddings } = file.config;
  const regions = [...file.streams.values()].filter(({ stream }) => stream.kind !== 'expert');
  const lookedUp = (kind: string) => kind === 'embedding' && !tiedEmbeddings;
  const plain = (region: (typeof regions)[number]) =>
    [...streamPieces(region.stream, file.dtype)].reduce(
      (sum, piece) => sum + (piece.kind === 'plain' ? 4 * elements(piece.tensor.shape) : 0),
      0,
    );
  const tiled = regions.filter((region) => !lookedUp(region.stream.kind) && plain(region) < region.length);
  return {
    fileBytes: file.layout.fileBytes,
    plainBytes: sum(regions.map(plain)),
    streams: tiled.map(({ name, length, stream }) => ({
      name,
      bytes: length,
      vocabulary: ['embedding', 'lmHead', 'finalNorm'].includes(stream.kind),
    })),
    experts: expertSizes(file),
    lookedUp: sum(regions.filter(({ stream }) => lookedUp(stream.kind)).map(({ length }) => length)),
    ...cacheSizes(plan, context, valueBytes),
    tokenBytes: 4 * sum(plan.buffers.filter(({ name }) => name !== plan.logits).map(({ length }) => length)),
  };
}

/** Positions of a page, the unit of what goes to disk: kPage of the kernels. */
const PAGE = 64;
/** Caches whose pages come back: of the layer that attends, and of the next. */
const STAGED = 2;
/** Pages of a cache that do not go: the one that is filled, and the one before it, which is being written. */
const KEPT = 2;

type CacheSizes = Pick<ModelSizes, 'cacheBytes' | 'leastCacheBytes'>;

function cacheSizes({ caches }: ExecutionPlan, context: number, valueBytes: number): CacheSizes {
  const bytes = (positions: number) => (width: number) => 2 * valueBytes * width * positions;
  const windowed = caches.map(({ width, window }) => (window ? bytes(Math.min(window, context))(width) : 0));
  const widths = caches.filter(({ window }) => !window).map(({ width }) => width);
  const whole = sum(widths.map(bytes(context)));
  const gone = PAGE * Math.max(0, Math.ceil(context / PAGE) - KEPT);
  const staged = STAGED * bytes(gone)(Math.max(0, ...widths));
  const least = staged + sum(widths.map(bytes(KEPT * PAGE)));
  return { cacheBytes: sum(windowed) + whole, leastCacheBytes: sum(windowed) + Math.min(whole, least) };
}

function expertSizes(file: ModelFile): ExpertSizes | undefined {
  const layers = bankLayers(file);
  if (layers.length === 0) return undefined;
  const configs = layers.map((layer) => file.config.layers[layer]!.experts!);
  return {
    count: sum(configs.map(({ count }) => count)),
    bytes: Math.max(
      ...layers.map((layer) => Math.max(...expertRegions(file, layer).map(({ length }) => length))),
    ),
    perToken: sum(configs.map(({ topK }) => topK)),
    layerCount: Math.max(...configs.map(({ count }) => count)),
    topK: Math.max(...configs.map(({ topK }) => topK)),
    layersInFlight: file.config.expertDelay + 1,
  };
}

export const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);
