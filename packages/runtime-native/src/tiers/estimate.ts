/** Memory and disk that a model needs, from its plan and file: PIPO's W (weights), C (KV cache), M (activations), in bytes. */
import { type ExecutionPlan, elements, type ModelFile, streamPieces } from '@cflow/format';
import { bankLayers, expertRegions } from '../native/tiers.js';

/** A weight stream that every token reads. */
export interface StreamSize {
  readonly name: string;
  readonly bytes: number;
  /** Embedding, final norm or LM head: belongs to no layer. */
  readonly vocabulary: boolean;
}

export interface ExpertSizes {
  /** Experts of all layers. */
  readonly count: number;
  /** The largest. */
  readonly bytes: number;
  /** Experts that a token uses in all layers. */
  readonly perToken: number;
  /** Experts of the layer that has most; experts that a token uses there. */
  readonly layerCount: number;
  readonly topK: number;
  /** Most layers whose experts are called and not yet computed: expertDelay + 1. */
  readonly layersInFlight: number;
}

export interface ModelSizes {
  readonly fileBytes: number;
  /** Norms, biases and routers: a few MB, always in memory. */
  readonly plainBytes: number;
  /** Streams with matrices; without experts, and without an embedding that is only looked up. */
  readonly streams: readonly StreamSize[];
  /** Undefined for a model without experts. */
  readonly experts: ExpertSizes | undefined;
  /** KV cache of `context` positions, processed one by one: C. */
  readonly cacheBytes: number;
  /** Part of the KV cache that must stay in memory; absent = all. */
  readonly leastCacheBytes?: number;
  /** What each token of a batch adds: windowed caches hold it besides the window. */
  readonly batchCacheBytes: number;
  /** Activations of one token, without logits, which only the last of a batch has. */
  readonly tokenBytes: number;
}

/** How a session uses its KV cache. */
export interface CacheUse {
  /** Positions. */
  readonly context: number;
  /** Most tokens of one batch. */
  readonly maxBatch: number;
  /** Bytes of one cached number. */
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

/** Positions of a page, the unit that goes to disk: kPage of the kernels. */
const PAGE = 64;
/** Layers whose pages are being read back: the one that attends, and the next. */
const STAGED = 2;
/** Pages of a cache that stay in memory: the one being filled, and the one being written to disk. */
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

/** Length of the metadata document, which holds the tokenizer. */
export const metadataBytes = ({ layout }: ModelFile) =>
  sum(layout.regions.filter(({ kind }) => kind === 'metadata').map(({ length }) => length));

/** Bytes of one number in the KV cache. */
export const cachedBytes = (cache: 'f16' | 'f32') => (cache === 'f16' ? 2 : 4);

/**
 * Least bytes with which a session reaches `context` positions one token at a time: the page being filled in every
 * cache, and what is read back from disk.
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

/** Upper bound: a window and a batch may begin and end within a page (the engine's ring_pages counts whole ones). */
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
