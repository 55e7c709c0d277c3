/**
 * Chooses tiers, pipeline and sizes for a memory budget (PIPO §5.3, Algorithm 2, for a CPU whose weights come from RAM
 * or disk). Pure: what was measured comes in, what to do comes out, with the reason.
 */
import { CflowError, type TransferMode } from '@cflow/format';
import { IN_MEMORY, type Placement } from '../native/tiers.js';
import { type ModelSizes, type StreamSize, sum } from './estimate.js';

/** What the machine can do; bytes per second. */
export interface Bandwidths {
  readonly memory: number;
  readonly disk: number;
}

export interface TierWishes {
  /** Bytes that the process may use. */
  readonly budget: number;
  /** Bytes that it uses already. */
  readonly used: number;
  /** Bytes that another process may use more: the smallest budget that is named works there too. */
  readonly margin?: number | undefined;
  /** Tokens of one batch of a prefill, at most. */
  readonly maxBatch: number;
  readonly transfers?: TransferMode | undefined;
  /** Experts in memory, instead of as many as fit. */
  readonly expertSlots?: number | undefined;
  /** Fetched streams in memory. */
  readonly streamSlots?: number | undefined;
  /** Fetched streams that are in use at the same time, at most. */
  readonly liveStreams: number;
}

/** PIPO's pipeline modes: fetch ahead of use, or hold no more than is in use. */
export type PipelineMode = 'performance' | 'memory-efficient';

export interface TierPlan {
  /** In memory, or fetched. */
  readonly weights: 'resident' | 'direct';
  /** For people: the rule that chose. */
  readonly rule: string;
  readonly mode: PipelineMode;
  readonly transfers: TransferMode;
  readonly placement: Placement;
  readonly expertSlots: number;
  readonly streamSlots: number;
  readonly maxBatch: number;
  /** Memory for the keys and values of a session, bytes, where not all fit; absent = all do. */
  readonly cacheMemory?: number;
  /** Bytes of the budget by what they go to. */
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

/** Of the budget, what a batch may take: tokens of a prefill share what is fetched. */
const VECTORS = 0.02;
/** Of the budget, what huge pages, allocators and the page cache of looked-up rows need besides. */
const SPARE = 0.04;
/** Slots are rounded up to what direct I/O and huge pages want. */
const ALIGN = 4096;
const MB = 1e6;

/**
 * @throws CflowError MEMORY if even the least does not fit; it names the smallest budget that does. USAGE for slots that
 * are asked for and are too few, or for a model that has nothing to put there
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

/** The plan with what the `least` weights leave for keys and values; undefined if that is too little. */
function spilling(sizes: ModelSizes, wishes: TierWishes, least: number): TierPlan | undefined {
  const { cacheBytes, leastCacheBytes = cacheBytes } = sizes;
  const cacheMemory = Math.floor(usable(wishes.budget) - (least - cacheBytes));
  if (cacheMemory < leastCacheBytes || cacheMemory >= cacheBytes) return undefined;
  const plan = configureTiers({ ...sizes, cacheBytes: cacheMemory, leastCacheBytes: cacheMemory }, wishes);
  const share = `${size(cacheMemory)} of ${size(cacheBytes)} of keys and values are in memory`;
  return { ...plan, cacheMemory, rule: `${plan.rule}; ${share}, the oldest on disk` };
}

/** Of a budget, what is kept free. */
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
    rule: `W + C + M = ${size(total(memory))} fit ${size(budget)}: everything in memory`,
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
  const rounded = (Math.floor((least + margin - spillable) / (1 - SPARE) / MB) + 1) * MB;
  throw new CflowError('MEMORY', `the model needs ${size(rounded)} at least, of which ${fetchable}`, {
    field: 'memory',
    value: budget,
    limit: rounded,
    remedy: `allow ${rounded} bytes or more, or use ${asked ? 'fewer slots, ' : ''}a shorter context or a smaller model`,
  });
}

/** Which streams are fetched. */
interface Arrangement {
  readonly fetched: readonly StreamSize[];
  readonly slots: number;
  /** Bytes of the slots, and of all that is in memory for streams. */
  readonly ring: number;
  readonly bytes: number;
}

/** Sizes of what is fetched, for one model and budget. */
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
    return `${size(this.#wishes.used)} are the process and ${size(caches)} the key/value cache`;
  }

  /** Of the bytes of keys and values, those that may be on disk. */
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
   * Ways to keep streams, best first: all in memory where there are experts to fetch; then with slots to read ahead
   * into, as few fetched as fit, spread over the layers; then the same without such slots. One at a time, and
   * of many streams some hundreds of counts: all of them would be the square of what stands in a file.
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

  /** The least memory with `bytes` for streams: one token at a time, no more experts than it uses, or those asked for. */
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
    if (expertSlots === 0) return 'streams do not fit: fetched in their order';
    const share = `${expertSlots} of ${this.#sizes.experts!.count} experts fit`;
    return fetched ? `${share}, not all streams: both are fetched` : `${share}: experts are fetched`;
  }

  /** As many as fit beside a batch that is worth its memory, and beside one token at least what that uses. */
  #expertSlots(bytes: number): number {
    const { experts } = this.#sizes;
    if (!experts) return 0;
    const room = usable(this.#wishes.budget) - this.#fixed(this.#comfortable) - bytes;
    const fitting = Math.min(experts.count, Math.floor(room / this.#slotBytes));
    return this.#wantedExperts ?? Math.max(this.#leastExperts, fitting);
  }

  /** Tokens whose experts all have a slot, and which fit themselves. */
  #batch(room: number, expertSlots: number): number {
    const { experts } = this.#sizes;
    const byMemory = Math.max(1, Math.floor(room / this.#tokenBytes));
    const most = Math.min(this.#wishes.maxBatch, byMemory);
    if (!experts || expertSlots === 0) return most;
    const { topK, layerCount, layersInFlight } = experts;
    const perLayer = Math.floor(expertSlots / layersInFlight);
    return perLayer >= layerCount ? most : Math.max(1, Math.min(most, Math.floor(perLayer / topK)));
  }

  /** Experts that one token uses, in all layers under way. */
  get #leastExperts(): number {
    const { experts } = this.#sizes;
    return experts ? Math.min(experts.count, experts.layersInFlight * experts.topK) : 0;
  }

  get #wantedExperts(): number | undefined {
    const { expertSlots } = this.#wishes;
    return expertSlots === undefined ? undefined : Math.min(expertSlots, this.#sizes.experts!.count);
  }

  /** What is in memory besides weights. */
  #fixed(tokens: number): number {
    return this.#wishes.used + this.#sizes.cacheBytes + tokens * this.#tokenBytes;
  }

  /** Of one token of a batch: its vectors, and its place in caches with a window. */
  get #tokenBytes(): number {
    return this.#sizes.tokenBytes + this.#sizes.batchCacheBytes;
  }

  /** Tokens of a batch that are worth their memory. */
  get #comfortable(): number {
    const tokens = Math.floor((VECTORS * this.#wishes.budget) / this.#tokenBytes);
    return Math.max(1, Math.min(this.#wishes.maxBatch, tokens));
  }

  /** Streams by how gladly they are fetched: those of layers first, as they come; then the vocabulary's. */
  get #all(): readonly StreamSize[] {
    const { streams } = this.#sizes;
    return [...streams.filter(({ vocabulary }) => !vocabulary), ...streams.filter((s) => s.vocabulary)];
  }
}

const withoutTransfers = () =>
  new CflowError('USAGE', 'weights that do not fit the memory are fetched by transfers', {
    field: 'transfers',
    value: 'none',
    remedy: 'leave it out, or allow more memory',
  });

/** @throws CflowError USAGE if fewer slots are asked for than are used at once, or any for what a model has not */
function atLeast(field: string, value: number, least: number, what: string): void {
  if (least > 0 && value >= least) return;
  const problem = least ? `a token uses ${least} ${what} at once` : `the model has no ${what}`;
  const remedy = least ? `ask for ${least} or more, or leave it out` : 'leave it out';
  throw new CflowError('USAGE', problem, { field, value, limit: least, remedy });
}

/** Slots beyond those in use: two streams ahead, as PIPO preloads. */
const AHEAD = 2;

/** Numbers of fetched streams that are tried. */
const MOST_COUNTS = 512;

const align = (bytes: number) => Math.ceil(bytes / ALIGN) * ALIGN;
const largest = (streams: readonly StreamSize[]) =>
  align(streams.reduce((most, { bytes }) => Math.max(most, bytes), 0));

/** `count` streams, evenly spread over those of layers; all of these before any of the vocabulary. */
export function spread(order: readonly StreamSize[], count: number): StreamSize[] {
  const layers = order.filter(({ vocabulary }) => !vocabulary);
  const rest = order.filter(({ vocabulary }) => vocabulary);
  const n = Math.min(count, layers.length);
  const at = (i: number) => Math.floor((i * n) / layers.length);
  return [...layers.filter((_, i) => at(i + 1) > at(i)), ...rest.slice(0, count - n)];
}

export const size = (bytes: number) =>
  bytes < 1e9 ? `${(bytes / 1e6).toFixed(2)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
