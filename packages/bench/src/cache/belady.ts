/** Belady's optimum: what gives way is what is used again last. No policy can hit more often; none can know. */

const NEVER = Number.MAX_SAFE_INTEGER;

/**
 * Hits of the best replacement there could be, beginning with an empty cache. The keys of a call are looked up before
 * any of them is let in, as the engine does it.
 * @param calls keys of each call of a token
 */
export function optimumHits(keys: Int32Array, calls: Int32Array, slots: number): number {
  const next = nextUses(keys);
  /** The next use of each key that is in the cache. */
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

/** By place: where the same key comes next. */
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
