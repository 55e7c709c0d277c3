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
  /** Key/value bytes of `context` positions, passed one by one: C. */
  readonly cacheBytes: number;
  /** What of these must be in memory while the rest is on disk; absent = all. */
  readonly leastCacheBytes?: number;
  /** What each token of a batch adds to them: caches with a window hold it besides the window. */
  readonly batchCacheBytes: number;
  /** Vectors of one token; its logits, which only the last of a batch has, left out. */
  readonly tokenBytes: number;
}

/** What the caches of a session are for. */
export interface CacheUse {
  /** Positions. */
  readonly context: number;
  /** Tokens of one batch, at most. */
  readonly maxBatch: number;
  /** Of a cached key or value. */
  readonly valueBytes: number;
}

export function modelSizes(plan: ExecutionPlan, file: ModelFile, use: CacheUse): ModelSizes {
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
    ...cacheSizes(plan, use),
    tokenBytes: 4 * sum(plan.buffers.filter(({ name }) => name !== plan.logits).map(({ length }) => length)),
  };
}

/** Positions of a page, the unit of what goes to disk: kPage of the kernels. */
const PAGE = 64;
/** Caches whose pages come back: of the layer that attends, and of the next. */
const STAGED = 2;
/** Pages of a cache that do not go: the one that is filled, and the one before it, which is being written. */
const KEPT = 2;

type CacheSizes = Pick<ModelSizes, 'cacheBytes' | 'leastCacheBytes' | 'batchCacheBytes'>;

function cacheSizes({ caches }: ExecutionPlan, { context, maxBatch, valueBytes }: CacheUse): CacheSizes {
  const bytes = (width: number, positions: number) => 2 * valueBytes * width * positions;
  const all = PAGE * Math.ceil(context / PAGE);
  const isRing = (window = 0) => window > 0 && ringPositions(window, maxBatch) < all;
  const windowed = caches.flatMap(({ width, window }) =>
    window ? [bytes(width, isRing(window) ? ringPositions(window, 1) : all)] : [],
  );
  const widths = caches.filter(({ window }) => !window).map(({ width }) => width);
  const whole = sum(widths.map((width) => bytes(width, all)));
  const staged = STAGED * bytes(Math.max(0, ...widths), Math.max(0, all - KEPT * PAGE));
  const least = staged + sum(widths.map((width) => bytes(width, KEPT * PAGE)));
  return {
    cacheBytes: sum(windowed) + whole,
    leastCacheBytes: sum(windowed) + Math.min(whole, least),
    batchCacheBytes: sum(caches.map(({ width, window }) => (isRing(window) ? bytes(width, 1) : 0))),
  };
}

/** Of one number in a cache. */
export const cachedBytes = (cache: 'f16' | 'f32') => (cache === 'f16' ? 2 : 4);

/**
 * Bytes below which no session reaches `context` positions, however little it passes at once: the page that is filled
 * in all caches, and what comes back from disk.
 */
export function fewestCacheBytes(
  { caches }: ExecutionPlan,
  { context, valueBytes }: Omit<CacheUse, 'maxBatch'>,
): number {
  const bytes = (width: number, positions: number) => 2 * valueBytes * width * positions;
  const all = PAGE * Math.ceil(context / PAGE);
  const widths = caches.filter(({ window }) => !window).map(({ width }) => width);
  const windowed = caches.flatMap(({ width, window }) =>
    window ? [bytes(width, Math.min(window, all))] : [],
  );
  const spilled = STAGED * bytes(Math.max(0, ...widths), all - PAGE) + bytes(sum(widths), PAGE);
  return sum(windowed) + Math.min(bytes(sum(widths), all), spilled);
}

/** At most: a window and a batch may begin and end within a page (ring_pages of the engine counts whole ones). */
const ringPositions = (window: number, batch: number) => window + batch + 2 * PAGE - 2;

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
