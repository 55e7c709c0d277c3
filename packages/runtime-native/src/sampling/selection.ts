/**
 * One token of a row of logits, by temperature, top-k, top-p, min-p and a random number: the definition, which
 * native/addon/sampling.cpp repeats operation by operation, so that both choose the same id. Nothing is sorted but the few
 * candidates that share a bin with a cut: the ids are counted in bins of about equal logits, whose order is that of the
 * ids in them. Every operation is one of IEEE 754, in the same order in both languages; `Math.exp` would not be.
 */

/** What is kept of the candidates, and the number that chooses among them. */
export interface Selection {
  /** 1 / temperature. */
  readonly inverseTemperature: number;
  /** Keep the k most likely; 0 = all. */
  readonly topK: number;
  /** Keep the most likely until their probabilities reach this. */
  readonly topP: number;
  /** Keep logits that are at most this below the largest: −ln(min-p) · temperature. */
  readonly depth: number;
  /** In [0, 1). */
  readonly random: number;
}

/** Chooses an id; the largest logit is finite and none is NaN. */
export type Select = (logits: Float32Array, selection: Selection) => number;

/** Bins by how far a logit is below the largest: 256 for each power of two from 2^-6 to 2^10, one below, one above. */
const BIN_SHIFT = 15;
const FIRST_BIN = (127 - 6) << (23 - BIN_SHIFT);
const BINS = (16 << (23 - BIN_SHIFT)) + 2;

const MIN_EXPONENT = -708;
const LOG2_E = Math.LOG2E;
const LN2_HIGH = 0.6931471803691238;
const LN2_LOW = 1.9082149292705877e-10;
/** Adding 1.5 · 2^52 rounds to an integer. */
const ROUNDER = 6755399441055744;
/** 2^-n. */
const POWERS = Float64Array.from({ length: 1023 }, (_, n) => 2 ** -n);

/** e^x for x ≤ 0, to about 1e-15; 0 below e^-708. Taylor's series around the nearest multiple of ln 2. */
export function expNegative(x: number): number {
  if (x < MIN_EXPONENT) return 0;
  const n = x * LOG2_E + ROUNDER - ROUNDER;
  const r = x - n * LN2_HIGH - n * LN2_LOW;
  let p = 1 / 39916800;
  p = p * r + 1 / 3628800;
  p = p * r + 1 / 362880;
  p = p * r + 1 / 40320;
  p = p * r + 1 / 5040;
  p = p * r + 1 / 720;
  p = p * r + 1 / 120;
  p = p * r + 1 / 24;
  p = p * r + 1 / 6;
  p = p * r + 1 / 2;
  p = p * r + 1;
  p = p * r + 1;
  return p * POWERS[-n]!;
}

/** The candidates of one row, in bins; most likely first. */
export class Candidates {
  readonly #logits: Float32Array;
  readonly #largest: number;
  readonly #inverseTemperature: number;
  readonly #sums = new Float64Array(BINS);
  readonly #counts = new Int32Array(BINS);
  readonly #sorted = new Map<number, Uint32Array>();
  /** What is kept: the bins before `#end`, and the first `#partial` ids of that one. */
  #end = BINS;
  #partial = 0;
  #total = 0;

  constructor(logits: Float32Array, largest: number, inverseTemperature: number) {
    this.#logits = logits;
    this.#largest = largest;
    this.#inverseTemperature = inverseTemperature;
    for (let id = 0; id < logits.length; id++) {
      const bin = this.#binOf(id);
      this.#sums[bin]! += this.weight(id);
      this.#counts[bin]!++;
    }
    this.#cutAt(BINS, 0);
  }

  /** Of an id, in proportion to its probability; 1 for the most likely. */
  weight(id: number): number {
    return expNegative(-(this.#largest - this.#logits[id]!) * this.#inverseTemperature);
  }

  keepMost(count: number): void {
    let before = 0;
    let bin = 0;
    while (bin < BINS && before + this.#counts[bin]! <= count) before += this.#counts[bin++]!;
    this.#cutAt(bin, count - before);
  }

  keepShare(share: number): void {
    const enough = share * this.#total;
    let reached = 0;
    for (let bin = 0; bin <= this.#end && bin < BINS; bin++) {
      const count = this.#keptOf(bin);
      if (count === 0) continue;
      if (bin < this.#end && reached + this.#sums[bin]! < enough) {
        reached += this.#sums[bin]!;
        continue;
      }
      const ids = this.#idsOf(bin);
      for (let i = 0; i < count; i++) {
        reached += this.weight(ids[i]!);
        if (reached >= enough) {
          this.#cutAt(bin, i + 1);
          return;
        }
      }
    }
  }

  keepWithin(depth: number): void {
    const bin = binOfDepth(Math.fround(depth));
    const last = bin > this.#end ? -1 : this.#keptOf(bin);
    if (last < 0) return;
    const ids = this.#idsOf(bin);
    let count = 0;
    while (count < last && this.#largest - this.#logits[ids[count]!]! <= depth) count++;
    this.#cutAt(bin, count);
  }

  /** Ids that are kept, most likely first. */
  kept(): number[] {
    const ids: number[] = [];
    for (let bin = 0; bin <= this.#end && bin < BINS; bin++) {
      const count = this.#keptOf(bin);
      if (count > 0) ids.push(...this.#idsOf(bin).subarray(0, count));
    }
    return ids;
  }

  draw(random: number): number {
    let left = random * this.#total;
    let likely = -1;
    for (let bin = 0; bin <= this.#end && bin < BINS; bin++) {
      const count = this.#keptOf(bin);
      if (count === 0) continue;
      if (bin < this.#end && left >= this.#sums[bin]!) {
        left -= this.#sums[bin]!;
        continue;
      }
      const ids = this.#idsOf(bin);
      for (let i = 0; i < count; i++) {
        const weight = this.weight(ids[i]!);
        left -= weight;
        if (weight > 0) likely = ids[i]!;
        if (left < 0) return ids[i]!;
      }
    }
    // Rounding left a rest, or the last bins were passed over for it.
    return likely >= 0 ? likely : this.#idsOf(this.#binOfLargest())[0]!;
  }

  #binOfLargest(): number {
    return this.#counts.findIndex((count) => count > 0);
  }

  #keptOf(bin: number): number {
    return bin < this.#end ? this.#counts[bin]! : this.#partial;
  }

  #cutAt(end: number, partial: number): void {
    this.#end = end;
    this.#partial = partial;
    let total = 0;
    for (let bin = 0; bin < end; bin++) total += this.#sums[bin]!;
    if (partial > 0) {
      const ids = this.#idsOf(end);
      for (let i = 0; i < partial; i++) total += this.weight(ids[i]!);
    }
    this.#total = total;
  }

  #binOf(id: number): number {
    return binOfDepth(Math.fround(this.#largest - this.#logits[id]!));
  }

  /** Ids of a bin, the largest logit first, of equal ones the lower id. */
  #idsOf(bin: number): Uint32Array {
    const known = this.#sorted.get(bin);
    if (known) return known;
    const ids = new Uint32Array(this.#counts[bin]!);
    let found = 0;
    for (let id = 0; found < ids.length; id++) if (this.#binOf(id) === bin) ids[found++] = id;
    const logits = this.#logits;
    ids.sort((a, b) => logits[b]! - logits[a]! || a - b);
    this.#sorted.set(bin, ids);
    return ids;
  }
}

const depths = new Float32Array(1);
const bits = new Int32Array(depths.buffer);

/** @param depth a float32 of at least 0 */
function binOfDepth(depth: number): number {
  depths[0] = depth;
  const bin = (bits[0]! >> BIN_SHIFT) - FIRST_BIN + 1;
  return Math.min(Math.max(bin, 0), BINS - 1);
}

/** Chooses an id in TypeScript. */
export const select: Select = (logits, { inverseTemperature, topK, topP, depth, random }) => {
  const candidates = candidatesOf(logits, { inverseTemperature, topK, topP, depth });
  return candidates.draw(random);
};

/** What temperature, top-k, top-p and min-p keep of a row. */
export function candidatesOf(
  logits: Float32Array,
  { inverseTemperature, topK, topP, depth }: Omit<Selection, 'random'>,
): Candidates {
  let largest = Number.NEGATIVE_INFINITY;
  for (let id = 0; id < logits.length; id++) if (logits[id]! > largest) largest = logits[id]!;
  const candidates = new Candidates(logits, largest, inverseTemperature);
  if (topK > 0 && topK < logits.length) candidates.keepMost(topK);
  if (topP < 1) candidates.keepShare(topP);
  if (depth < Number.POSITIVE_INFINITY) candidates.keepWithin(depth);
  return candidates;
}
