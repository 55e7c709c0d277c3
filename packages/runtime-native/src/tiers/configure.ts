/**
 * Chooses tiers, pipeline and sizes for a memory budget (PIPO §5.3, Algorithm 2, for a CPU whose weights come from RAM
 * or disk). Pure: what was measured comes in, what to do comes out, with the reason.
 */
import { CflowError, type TransferMode } from '@cflow/format';
import { IN_MEMORY, type Placement } from '../native/tiers.js';
import { type ExpertSizes, type ModelSizes, type StreamSize, sum } from './estimate.js';

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

/** Of the budget, what the vectors of a batch may take: tokens of a prefill share what is fetched. */
const VECTORS = 0.02;
/** Of the budget, what huge pages, allocators and the page cache of looked-up rows need besides. */
const SPARE = 0.04;
/** Slots are rounded up to what direct I/O and huge pages want. */
const ALIGN = 4096;
const MB = 1e6;

/**
 * @throws CflowError MEMORY if even the least does not fit; it names the smallest budget that does
 */
export function configureTiers(sizes: ModelSizes, wishes: TierWishes): TierPlan {
  const whole = wholeModel(sizes, wishes);
  const forced = wishes.expertSlots !== undefined || wishes.streamSlots !== undefined;
  if (total(whole.memory) <= usable(wishes.budget) && !forced) return whole;
  const layout = new Layout(sizes, wishes);
  const least = layout.least();
  if (least > usable(wishes.budget)) throw tooSmall(wishes.budget, least / (1 - SPARE), layout);
  return layout.experts() ?? layout.streams();
}

const usable = (budget: number) => budget * (1 - SPARE);
const total = (memory: MemoryUse) => sum(Object.values(memory));

function wholeModel(sizes: ModelSizes, wishes: TierWishes): TierPlan {
  const { budget, used, maxBatch } = wishes;
  const memory = {
    process: used,
    weights: sizes.fileBytes,
    slots: 0,
    caches: sizes.cacheBytes,
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

function tooSmall(budget: number, least: number, { fetchable }: Layout): CflowError {
  const rounded = Math.ceil(least / MB) * MB;
  return new CflowError('MEMORY', `the model needs ${size(rounded)} at least, of which ${fetchable}`, {
    field: 'memory',
    value: budget,
    limit: rounded,
    remedy: `allow ${rounded} bytes or more, or use a shorter context or a smaller model`,
  });
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
    const { cacheBytes } = this.#sizes;
    return `${size(this.#wishes.used)} are the process and ${size(cacheBytes)} the key/value cache`;
  }

  /** The smallest memory that works: one token at a time, every stream fetched, no more slots than are in use. */
  least(): number {
    return this.#fixed(1) + this.#leastExperts(1) * this.#slotBytes + this.#ring(this.#all, 0);
  }

  /** Experts are fetched, all streams are in memory; undefined if these do not fit, or there are no experts. */
  experts(): TierPlan | undefined {
    const { experts, streams } = this.#sizes;
    const { streamSlots } = this.#wishes;
    if (!experts || streamSlots !== undefined) return undefined;
    const weights = this.#sizes.plainBytes + sum(streams.map(({ bytes }) => bytes));
    return this.#withExperts(experts, weights, new Set(), 0);
  }

  /** As few streams are fetched as fit, spread over the layers; experts keep the least. */
  streams(): TierPlan {
    const { experts, plainBytes } = this.#sizes;
    const order = this.#all;
    for (let count = 1; count <= order.length; count++) {
      const fetched = spread(order, count);
      const kept = sum(order.filter((stream) => !fetched.includes(stream)).map(({ bytes }) => bytes));
      for (const ahead of [AHEAD, 0]) {
        const slots = this.#ringSlots(fetched, ahead);
        const names = new Set(fetched.map(({ name }) => name));
        const ring = slots * largest(fetched);
        if (!this.#fits(plainBytes + kept + ring + this.#leastExperts(1) * this.#slotBytes)) continue;
        if (experts) return this.#withExperts(experts, plainBytes + kept, names, slots)!;
        return this.#plan('streams do not fit: fetched in their order', plainBytes + kept, names, slots, 0);
      }
    }
    throw new CflowError('INTERNAL', 'the least fits, and nothing does');
  }

  #withExperts(
    experts: ExpertSizes,
    weights: number,
    names: ReadonlySet<string>,
    streamSlots: number,
  ): TierPlan | undefined {
    const ring = streamSlots * largest(this.#all.filter(({ name }) => names.has(name)));
    const room = usable(this.#wishes.budget) - this.#fixed(this.#comfortable) - weights - ring;
    const fitting = Math.min(experts.count, Math.floor(room / this.#slotBytes));
    const slots = this.#wishes.expertSlots ?? fitting;
    if (slots < this.#leastExperts(1) || slots > fitting) return undefined;
    const share = `${slots} of ${experts.count} experts fit`;
    const rule = names.size ? `${share}, not all streams: both are fetched` : `${share}: experts are fetched`;
    return this.#plan(rule, weights, names, streamSlots, slots);
  }

  #plan(
    rule: string,
    weights: number,
    streams: ReadonlySet<string>,
    streamSlots: number,
    expertSlots: number,
  ): TierPlan {
    const ring = streamSlots * largest(this.#all.filter(({ name }) => streams.has(name)));
    const slots = expertSlots * this.#slotBytes + ring;
    const room = usable(this.#wishes.budget) - this.#fixed(0) - weights - slots;
    const maxBatch = this.#batch(room, expertSlots);
    const { experts, cacheBytes: caches, tokenBytes } = this.#sizes;
    const undelayed = experts && expertSlots > 0 && experts.layersInFlight === 1;
    return {
      weights: 'direct',
      rule,
      mode: streamSlots > 0 && streamSlots <= this.#wishes.liveStreams ? 'memory-efficient' : 'performance',
      transfers: this.#wishes.transfers ?? (undelayed ? 'predict' : 'overlap'),
      placement: { streams, experts: expertSlots > 0 },
      expertSlots,
      streamSlots,
      maxBatch,
      memory: { process: this.#wishes.used, weights, slots, caches, vectors: maxBatch * tokenBytes },
    };
  }

  /** Tokens whose experts all have a slot, and whose vectors fit. */
  #batch(room: number, expertSlots: number): number {
    const { experts, tokenBytes } = this.#sizes;
    const byMemory = Math.max(1, Math.floor(room / tokenBytes));
    const most = Math.min(this.#wishes.maxBatch, byMemory);
    if (!experts || expertSlots === 0) return most;
    const { topK, layerCount, layersInFlight } = experts;
    const perLayer = Math.floor(expertSlots / layersInFlight);
    return perLayer >= layerCount ? most : Math.max(1, Math.min(most, Math.floor(perLayer / topK)));
  }

  #leastExperts(tokens: number): number {
    const { experts } = this.#sizes;
    if (!experts) return 0;
    const { topK, layerCount, layersInFlight, count } = experts;
    return Math.min(count, layersInFlight * Math.min(layerCount, tokens * topK));
  }

  /** What is in memory besides weights. */
  #fixed(tokens: number): number {
    return this.#wishes.used + this.#sizes.cacheBytes + tokens * this.#sizes.tokenBytes;
  }

  /** Tokens of a batch that are worth their memory. */
  get #comfortable(): number {
    const tokens = Math.floor((VECTORS * this.#wishes.budget) / this.#sizes.tokenBytes);
    return Math.max(1, Math.min(this.#wishes.maxBatch, tokens));
  }

  #fits(bytes: number): boolean {
    return this.#fixed(1) + bytes <= usable(this.#wishes.budget);
  }

  #ringSlots(fetched: readonly StreamSize[], ahead: number): number {
    return this.#wishes.streamSlots ?? Math.min(fetched.length, this.#wishes.liveStreams + ahead);
  }

  #ring(fetched: readonly StreamSize[], ahead: number): number {
    return this.#sizes.plainBytes + this.#ringSlots(fetched, ahead) * largest(fetched);
  }

  /** Streams by how gladly they are fetched: those of layers first, as they come; then the vocabulary's. */
  get #all(): readonly StreamSize[] {
    const { streams } = this.#sizes;
    return [...streams.filter(({ vocabulary }) => !vocabulary), ...streams.filter((s) => s.vocabulary)];
  }
}

/** Slots beyond those in use: two streams ahead, as PIPO preloads. */
const AHEAD = 2;

const align = (bytes: number) => Math.ceil(bytes / ALIGN) * ALIGN;
const largest = (streams: readonly StreamSize[]) => align(Math.max(0, ...streams.map(({ bytes }) => bytes)));

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
