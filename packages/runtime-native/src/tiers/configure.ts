/**
 * Chooses tiers, pipeline mode and sizes for a memory budget: PIPO §5.3, Algorithm 2, for a CPU that reads weights from
 * memory or disk. Pure: takes measurements, returns the plan and the rule that chose it.
 */

import { CflowError, type TransferMode } from '@cflow/format';
import { memoryText } from '#cli-kit/bytes.js';
import { IN_MEMORY, type Placement } from '../native/tiers.js';
import { type ModelSizes, type StreamSize, sum } from './estimate.js';

/** Measured read bandwidths, bytes per second. */
export interface Bandwidths {
  readonly memory: number;
  readonly disk: number;
}

export interface TierWishes {
  /** Bytes that the process may use. */
  readonly budget: number;
  /** Bytes that it uses now. */
  readonly used: number;
  /** Added to the smallest budget that an error names, bytes, so that it also works in another process. */
  readonly margin?: number | undefined;
  /** Most tokens of one prompt batch. */
  readonly maxBatch: number;
  readonly transfers?: TransferMode | undefined;
  /** Expert cache slots; absent = as many as fit. */
  readonly expertSlots?: number | undefined;
  /** Stream slots. */
  readonly streamSlots?: number | undefined;
  /** Most offloaded streams in use at the same time. */
  readonly liveStreams: number;
}

/** PIPO's pipeline modes: read ahead of use, or hold only what is in use. */
export type PipelineMode = 'performance' | 'memory-efficient';

export interface TierPlan {
  /** In memory, or offloaded. */
  readonly weights: 'resident' | 'direct';
  /** The rule that chose, as text. */
  readonly rule: string;
  readonly mode: PipelineMode;
  readonly transfers: TransferMode;
  readonly placement: Placement;
  readonly expertSlots: number;
  readonly streamSlots: number;
  readonly maxBatch: number;
  /** Bytes of a session's KV cache that stay in memory; absent = all. */
  readonly cacheMemory?: number;
  /** How the budget is spent. */
  readonly memory: MemoryUse;
}

/** Bytes. */
export interface MemoryUse {
  readonly process: number;
  readonly weights: number;
  readonly slots: number;
  readonly caches: number;
  readonly vectors: number;
}

/** Share of the budget for a batch: tokens of a prompt share what is read from disk. */
const VECTORS = 0.02;
/** Share of the budget kept free for huge pages, allocators and the page cache of embedding rows. */
const SPARE = 0.04;
/** Slot sizes are multiples of this, as direct I/O and huge pages require. */
const ALIGN = 4096;
const MIB = 2 ** 20;

/**
 * @throws CflowError MEMORY if nothing fits; it names the smallest budget that does. USAGE if the requested slots are too
 * few, or the model has nothing to put there
 */
export function configureTiers(sizes: ModelSizes, wishes: TierWishes): TierPlan {
  const whole = wholeModel(sizes, wishes);
  const forced = wishes.expertSlots !== undefined || wishes.streamSlots !== undefined;
  if (total(whole.memory) <= usable(wishes.budget) && !forced) return whole;
  const layout = new Layout(sizes, wishes);
  layout.checkWishes();
  let fewest = Number.POSITIVE_INFINITY;
  for (const arrangement of layout.arrangements()) {
    if (layout.least(arrangement.bytes) <= usable(wishes.budget)) return layout.plan(arrangement);
    fewest = Math.min(fewest, arrangement.bytes);
  }
  const least = layout.least(fewest);
  return spilling(sizes, wishes, least) ?? tooSmall(wishes, least, layout, forced);
}

/** The plan whose KV cache gets what the smallest weights leave; undefined if that is too little. */
function spilling(sizes: ModelSizes, wishes: TierWishes, least: number): TierPlan | undefined {
  const { cacheBytes, leastCacheBytes = cacheBytes } = sizes;
  const cacheMemory = Math.floor(usable(wishes.budget) - (least - cacheBytes));
  if (cacheMemory < leastCacheBytes || cacheMemory >= cacheBytes) return undefined;
  const plan = configureTiers({ ...sizes, cacheBytes: cacheMemory, leastCacheBytes: cacheMemory }, wishes);
  const share = `${memoryText(cacheMemory)} of ${memoryText(cacheBytes)} of the KV cache are in memory`;
  return { ...plan, cacheMemory, rule: `${plan.rule}; ${share}, the oldest on disk` };
}

/** Bytes of a budget that are kept free. */
export const reserve = (budget: number) => budget * SPARE;
const usable = (budget: number) => budget * (1 - SPARE);
const total = (memory: MemoryUse) => sum(Object.values(memory));

function wholeModel(sizes: ModelSizes, wishes: TierWishes): TierPlan {
  const { budget, used, maxBatch } = wishes;
  const memory = {
    process: used,
    weights: sizes.fileBytes,
    slots: 0,
    caches: sizes.cacheBytes + maxBatch * sizes.batchCacheBytes,
    vectors: maxBatch * sizes.tokenBytes,
  };
  return {
    weights: 'resident',
    rule: `W + C + M = ${memoryText(total(memory))} fit ${memoryText(budget)}: everything in memory`,
    mode: 'performance',
    transfers: 'none',
    placement: IN_MEMORY,
    expertSlots: 0,
    streamSlots: 0,
    maxBatch,
    memory,
  };
}

function tooSmall(
  { budget, margin = 0 }: TierWishes,
  least: number,
  { fetchable, spillable }: Layout,
  asked: boolean,
): never {
  // Above, not at: products round.
  const mebibytes = Math.floor((least + margin - spillable) / (1 - SPARE) / MIB) + 1;
  throw new CflowError('MEMORY', `the model needs ${mebibytes} MiB at least, of which ${fetchable}`, {
    field: 'memory',
    value: budget,
    limit: mebibytes * MIB,
    remedy: `allow ${mebibytes} MiB or more, or use ${asked ? 'fewer slots, ' : ''}a shorter context or a smaller model`,
  });
}

/** Which streams are offloaded. */
interface Arrangement {
  readonly fetched: readonly StreamSize[];
  readonly slots: number;
  /** Bytes of the stream slots; bytes in memory for all streams, slots included. */
  readonly ring: number;
  readonly bytes: number;
}

/** Sizes of what is offloaded, for one model and budget. */
class Layout {
  readonly #sizes: ModelSizes;
  readonly #wishes: TierWishes;
  readonly #slotBytes: number;

  constructor(sizes: ModelSizes, wishes: TierWishes) {
    this.#sizes = sizes;
    this.#wishes = wishes;
    this.#slotBytes = align(sizes.experts?.bytes ?? 0);
  }

  get fetchable(): string {
    const caches = this.#sizes.cacheBytes - this.spillable;
    return `${memoryText(this.#wishes.used)} are the process and ${memoryText(caches)} the KV cache`;
  }

  /** Bytes of the KV cache that may be on disk. */
  get spillable(): number {
    const { cacheBytes, leastCacheBytes = cacheBytes } = this.#sizes;
    return cacheBytes - leastCacheBytes;
  }

  /** @throws CflowError USAGE */
  checkWishes(): void {
    const { expertSlots, streamSlots, liveStreams, transfers } = this.#wishes;
    if (transfers === 'none') throw withoutTransfers();
    if (expertSlots !== undefined) atLeast('expertSlots', expertSlots, this.#leastExperts, 'experts');
    const streams = Math.min(liveStreams, this.#sizes.streams.length);
    if (streamSlots !== undefined) atLeast('streamSlots', streamSlots, streams, 'weight streams');
  }

  /**
   * Ways to place streams, best first: all in memory if the model has experts to offload; then the fewest offloaded that
   * fit, spread over the layers, with slots to read ahead; then the same without read-ahead. Lazy, and at most
   * MOST_COUNTS counts: trying every count would be quadratic in the number of streams of a file.
   */
  *arrangements(): Generator<Arrangement> {
    const { experts, plainBytes } = this.#sizes;
    const { streamSlots, liveStreams } = this.#wishes;
    const order = this.#all;
    const all = plainBytes + sum(order.map(({ bytes }) => bytes));
    if (experts && streamSlots === undefined) yield { fetched: [], slots: 0, ring: 0, bytes: all };
    for (const ahead of [AHEAD, 0]) {
      for (let i = 1; i <= Math.min(order.length, MOST_COUNTS); i++) {
        const count = Math.ceil((i * order.length) / Math.min(order.length, MOST_COUNTS));
        const fetched = spread(order, count);
        const slots = Math.min(count, streamSlots ?? liveStreams + ahead);
        const ring = slots * largest(fetched);
        yield { fetched, slots, ring, bytes: all - sum(fetched.map(({ bytes }) => bytes)) + ring };
      }
    }
  }

  /** Least memory with `bytes` for streams: one token at a time, and the experts that it uses or the requested slots. */
  least(bytes: number): number {
    return this.#fixed(1) + bytes + (this.#wantedExperts ?? this.#leastExperts) * this.#slotBytes;
  }

  plan({ fetched, slots: streamSlots, ring, bytes }: Arrangement): TierPlan {
    const expertSlots = this.#expertSlots(bytes);
    const slots = expertSlots * this.#slotBytes + ring;
    const weights = bytes - ring;
    const maxBatch = this.#batch(usable(this.#wishes.budget) - this.#fixed(0) - weights - slots, expertSlots);
    const { experts, cacheBytes, batchCacheBytes, tokenBytes } = this.#sizes;
    const caches = cacheBytes + maxBatch * batchCacheBytes;
    const undelayed = experts && experts.layersInFlight === 1;
    return {
      weights: 'direct',
      rule: this.#rule(expertSlots, fetched.length),
      mode: streamSlots > 0 && streamSlots <= this.#wishes.liveStreams ? 'memory-efficient' : 'performance',
      transfers: this.#wishes.transfers ?? (undelayed ? 'predict' : 'overlap'),
      placement: { streams: new Set(fetched.map(({ name }) => name)), experts: expertSlots > 0 },
      expertSlots,
      streamSlots,
      maxBatch,
      memory: { process: this.#wishes.used, weights, slots, caches, vectors: maxBatch * tokenBytes },
    };
  }

  #rule(expertSlots: number, fetched: number): string {
    if (expertSlots === 0) return 'streams do not fit: offloaded in plan order';
    const share = `${expertSlots} of ${this.#sizes.experts!.count} experts fit`;
    return fetched ? `${share}, not all streams: both are offloaded` : `${share}: experts are offloaded`;
  }

  /** As many slots as fit beside a batch of useful size; at least what one token uses. */
  #expertSlots(bytes: number): number {
    const { experts } = this.#sizes;
    if (!experts) return 0;
    const room = usable(this.#wishes.budget) - this.#fixed(this.#comfortable) - bytes;
    const fitting = Math.min(experts.count, Math.floor(room / this.#slotBytes));
    return this.#wantedExperts ?? Math.max(this.#leastExperts, fitting);
  }

  /** Most tokens that fit and whose experts all have a slot. */
  #batch(room: number, expertSlots: number): number {
    const { experts } = this.#sizes;
    const byMemory = Math.max(1, Math.floor(room / this.#tokenBytes));
    const most = Math.min(this.#wishes.maxBatch, byMemory);
    if (!experts || expertSlots === 0) return most;
    const { topK, layerCount, layersInFlight } = experts;
    const perLayer = Math.floor(expertSlots / layersInFlight);
    return perLayer >= layerCount ? most : Math.max(1, Math.min(most, Math.floor(perLayer / topK)));
  }

  /** Experts that one token uses, over all layers in flight. */
  get #leastExperts(): number {
    const { experts } = this.#sizes;
    return experts ? Math.min(experts.count, experts.layersInFlight * experts.topK) : 0;
  }

  get #wantedExperts(): number | undefined {
    const { expertSlots } = this.#wishes;
    return expertSlots === undefined ? undefined : Math.min(expertSlots, this.#sizes.experts!.count);
  }

  /** Bytes in memory besides weights. */
  #fixed(tokens: number): number {
    return this.#wishes.used + this.#sizes.cacheBytes + tokens * this.#tokenBytes;
  }

  /** Bytes of one token of a batch: its activations, and its place in windowed KV caches. */
  get #tokenBytes(): number {
    return this.#sizes.tokenBytes + this.#sizes.batchCacheBytes;
  }

  /** A batch size that is worth its memory. */
  get #comfortable(): number {
    const tokens = Math.floor((VECTORS * this.#wishes.budget) / this.#tokenBytes);
    return Math.max(1, Math.min(this.#wishes.maxBatch, tokens));
  }

  /** Streams in offload order: those of layers first, in plan order; embedding, final norm and head last. */
  get #all(): readonly StreamSize[] {
    const { streams } = this.#sizes;
    return [...streams.filter(({ vocabulary }) => !vocabulary), ...streams.filter((s) => s.vocabulary)];
  }
}

const withoutTransfers = () =>
  new CflowError('USAGE', 'weights that do not fit need transfers', {
    field: 'transfers',
    value: 'none',
    remedy: 'leave it out, or allow more memory',
  });

/** @throws CflowError USAGE if fewer slots are requested than are used at once, or the model has nothing to put there */
function atLeast(field: string, value: number, least: number, what: string): void {
  if (least > 0 && value >= least) return;
  const problem = least ? `a token uses ${least} ${what} at once` : `the model has no ${what}`;
  const remedy = least ? `ask for ${least} or more, or leave it out` : 'leave it out';
  throw new CflowError('USAGE', problem, { field, value, limit: least, remedy });
}

/** Stream slots beyond those in use: PIPO preloads two. */
const AHEAD = 2;

/** Most counts of offloaded streams that are tried. */
const MOST_COUNTS = 512;

const align = (bytes: number) => Math.ceil(bytes / ALIGN) * ALIGN;
const largest = (streams: readonly StreamSize[]) =>
  align(streams.reduce((most, { bytes }) => Math.max(most, bytes), 0));

/** `count` streams in offload order, evenly spread over the layers. */
export function spread(order: readonly StreamSize[], count: number): StreamSize[] {
  const layers = order.filter(({ vocabulary }) => !vocabulary);
  const rest = order.filter(({ vocabulary }) => vocabulary);
  const n = Math.min(count, layers.length);
  const at = (i: number) => Math.floor((i * n) / layers.length);
  return [...layers.filter((_, i) => at(i + 1) > at(i)), ...rest.slice(0, count - n)];
}
