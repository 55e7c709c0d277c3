/** A cache of experts as its docstring describes it, from whole histories and without any arithmetic to save work. */
import type { CacheReplay } from '../src/runner/addon.js';

interface Use {
  readonly token: number;
  /** In the order of all uses. */
  readonly at: number;
}

type Policy = 'LRU' | 'LFU' | { readonly halfLife: number };

/** What an expert is worth at a token, of all its uses so far. */
function worth(uses: readonly Use[], policy: Policy, token: number): number {
  if (policy === 'LRU') return uses.at(-1)!.at;
  if (policy === 'LFU') return uses.length;
  return uses.reduce((sum, use) => sum + 2 ** -((token - use.token) / policy.halfLife), 0);
}

/**
 * Hits; values are compared as of the token at which the layer of each expert was called last.
 * @param policy what gives way; of equals the one in the first slot
 */
export function naiveHits(
  { keys, calls, firstKeys, slots, inFlight }: Omit<CacheReplay, 'halfLife' | 'repeat'>,
  policy: Policy,
): number {
  const layerOf = (key: number) => firstKeys.filter((first) => first <= key).length - 1;
  const uses = new Map<number, Use[]>();
  const called = new Map<number, number>();
  const slotKeys: (number | undefined)[] = Array(slots).fill(undefined);
  let [hits, at] = [0, 0];
  for (let token = 0; at < keys.length; token++) {
    let held: number[][] = [];
    for (const [layer, count] of calls.entries()) {
      const call = [...keys.subarray(at, at + count)];
      called.set(layer, token);
      for (const key of call) uses.set(key, [...(uses.get(key) ?? []), { token, at: at++ }]);
      held = [...held, call].slice(-inFlight);
      const found = call.filter((key) => slotKeys.includes(key));
      hits += found.length;
      // Those of the call that were found are held; those that come in are held once they are there.
      const kept = [...held.slice(0, -1).flat(), ...found];
      for (const key of call.filter((each) => !found.includes(each))) {
        const rank = slotKeys.map((other) => {
          if (other === undefined) return Number.NEGATIVE_INFINITY;
          if (kept.includes(other)) return Number.POSITIVE_INFINITY;
          return worth(uses.get(other)!, policy, called.get(layerOf(other))!);
        });
        slotKeys[rank.indexOf(Math.min(...rank))] = key;
        kept.push(key);
      }
    }
  }
  return hits;
}

/** The most hits that any choice of what gives way could have: all choices are tried. One key a call. */
export function mostHits(keys: readonly number[], slots: number, cached: readonly number[] = []): number {
  const [key, ...rest] = keys;
  if (key === undefined) return 0;
  if (cached.includes(key)) return 1 + mostHits(rest, slots, cached);
  if (cached.length < slots) return mostHits(rest, slots, [...cached, key]);
  return Math.max(
    ...cached.map((out) => mostHits(rest, slots, [...cached.filter((other) => other !== out), key])),
  );
}
