/** Replays recorded routings with policies and sizes of the expert cache. */
import { CflowError } from '@cflow/format';
import { HALF_LIFE } from '@cflow/runtime-native/internal/tiers/choose.js';
import type { Trace } from '@cflow/runtime-native/internal/tiers/trace-file.js';
import { type BenchAddon, type CacheReplay, requireBenchAddon } from '../../runner/addon.js';
import { answered } from '../../runner/native.js';
import { breathe } from '../../runner/resources.js';

export interface Policy {
  readonly name: string;
  /** Half-life of LRFU, as in the engine; undefined: Belady's optimum. */
  readonly halfLife: number | undefined;
  /** Experts of the latest token have more weight, as in the engine. */
  readonly repeat?: boolean;
}

export const LRU: Policy = { name: 'LRU', halfLife: 0 };
export const LFU: Policy = { name: 'LFU', halfLife: Number.POSITIVE_INFINITY };
export const OPTIMUM: Policy = { name: 'optimum', halfLife: undefined };
/** The engine's default policy. */
export const ENGINE: Policy = {
  name: `the engine (LRFU ${HALF_LIFE}, repeats)`,
  halfLife: HALF_LIFE,
  repeat: true,
};
export const lrfu = (halfLife: number): Policy => ({ name: `LRFU ${halfLife}`, halfLife });

export interface ReplaySize {
  /** Share of the experts, 0 to 1. */
  readonly share: number;
  readonly slots: number;
}

export interface ReplayRow {
  readonly policy: Policy;
  /** Hit rate of each size, 0 to 1. */
  readonly rates: readonly number[];
}

export interface ReplayReport {
  readonly model: string;
  readonly tokens: number;
  readonly experts: number;
  readonly sizes: readonly ReplaySize[];
  readonly rows: readonly ReplayRow[];
}

/** Routings in the form that the addon replays. */
export type Keys = Omit<CacheReplay, 'slots' | 'halfLife' | 'repeat'>;

/** Experts numbered over all layers, in order of tokens. */
export function keysOf({ header: { layers, expertDelay }, tokens }: Trace): Keys {
  const first = [0];
  for (const { experts } of layers) first.push(first.at(-1)! + experts);
  const keys = tokens.flatMap(({ experts }) => experts.flatMap((own, i) => own.map((id) => first[i]! + id)));
  return {
    keys: Int32Array.from(keys),
    calls: Int32Array.from(layers, ({ topK }) => topK),
    firstKeys: Int32Array.from(first),
    inFlight: expertDelay + 1,
  };
}

const countOf = ({ firstKeys }: Keys) => firstKeys.at(-1)!;

/** Slots of a share of the experts, at least those that calls in flight hold. */
export function sizeOf(share: number, keys: Keys): ReplaySize {
  const least = keys.inFlight * Math.max(...keys.calls);
  const slots = Math.min(countOf(keys), Math.max(least, Math.round(share * countOf(keys))));
  return { share, slots };
}

/** @throws CflowError UNSUPPORTED without the addon, USAGE for an empty trace */
export async function replayTrace(
  trace: Trace,
  shares: readonly number[],
  policies: readonly Policy[],
): Promise<ReplayReport> {
  const addon = requireBenchAddon();
  if (trace.tokens.length === 0) throw new CflowError('USAGE', 'the trace has no tokens');
  const keys = keysOf(trace);
  const sizes = shares.map((share) => sizeOf(share, keys));
  const rows: ReplayRow[] = [];
  for (const policy of policies) {
    const rates: number[] = [];
    for (const { slots } of sizes) {
      await breathe();
      rates.push((await hits(addon, keys, policy, slots)) / keys.keys.length);
    }
    rows.push({ policy, rates });
  }
  return { model: trace.header.model, tokens: trace.tokens.length, experts: countOf(keys), sizes, rows };
}

async function hits(
  addon: BenchAddon,
  keys: Keys,
  { halfLife, repeat = false }: Policy,
  slots: number,
): Promise<number> {
  if (halfLife === undefined) return optimumHits(keys.keys, keys.calls, slots);
  return (await answered(addon.simulateCache({ ...keys, slots, halfLife, repeat }))).hits;
}

// Belady’s optimum: evict the key whose next use is furthest. No policy hits more often, and none can know the future.
const NEVER = Number.MAX_SAFE_INTEGER;

/**
 * Hits of the optimal policy, from an empty cache. The keys of a call are looked up before any of them is inserted, as
 * in the engine.
 * @param calls keys of each call of a token
 */
export function optimumHits(keys: Int32Array, calls: Int32Array, slots: number): number {
  const next = nextUses(keys);
  /** Next use of each cached key. */
  const cached = new Map<number, number>();
  let hits = 0;
  for (let at = 0, call = 0; at < keys.length; call = (call + 1) % calls.length) {
    const end = at + calls[call]!;
    const missing: number[] = [];
    for (; at < end; at++) {
      const known = cached.has(keys[at]!);
      if (known) hits++;
      else missing.push(at);
      if (known) cached.set(keys[at]!, next[at]!);
    }
    for (const index of missing) admit(cached, keys[index]!, next[index]!, slots);
  }
  return hits;
}

/** By position: next position of the same key. */
function nextUses(keys: Int32Array): Float64Array {
  const next = new Float64Array(keys.length);
  const seen = new Map<number, number>();
  for (let at = keys.length - 1; at >= 0; at--) {
    next[at] = seen.get(keys[at]!) ?? NEVER;
    seen.set(keys[at]!, at);
  }
  return next;
}

function admit(cached: Map<number, number>, key: number, use: number, slots: number): void {
  if (cached.size >= slots) {
    let last = -1;
    let latest = -1;
    for (const [other, when] of cached) {
      if (when <= latest) continue;
      last = other;
      latest = when;
    }
    cached.delete(last);
  }
  cached.set(key, use);
}
