/** Sessions that are kept for what they have computed: a request that begins as one of them did goes on from there. */
import { CflowError } from '@cflow/format';
import type { Session } from '../session.js';

/** Fewer tokens are not worth a fork. */
const LEAST_REUSED = 16;

/** A session, and how many of its tokens the request begins with. */
export interface Prefix {
  readonly session: Session;
  readonly reused: number;
}

/** Tokens that two sequences begin with in common. */
export function commonPrefix(a: readonly number[], b: readonly number[]): number {
  let length = 0;
  while (length < a.length && length < b.length && a[length] === b[length]) length++;
  return length;
}

/**
 * Kept sessions, the least recently used one first. Their KV caches stay within a budget of bytes; a page that two of them
 * share counts in both.
 */
export class PrefixCache {
  readonly #budget: number;
  readonly #kept = new Map<Session, { readonly ids: readonly number[]; readonly bytes: number }>();

  /** @param budget bytes of KV caches that are kept while no request uses them; 0 = none */
  constructor(budget: number) {
    this.#budget = budget;
  }

  /** Bytes of the KV caches that are kept. */
  get bytes(): number {
    return [...this.#kept.values()].reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Kept sessions. */
  get size(): number {
    return this.#kept.size;
  }

  /**
   * A session that has the longest prefix of `ids` that any kept one has, and nothing else; the caller owns it. At least one
   * token is left to pass, of several two: one alone passes in another precision than in a prompt (`Engine.runBatch`).
   */
  async take(ids: readonly number[]): Promise<Prefix | undefined> {
    const most = ids.length - (ids.length > 1 ? 2 : 1);
    let best: { session: Session; length: number } | undefined;
    for (const [session, kept] of this.#kept) {
      const length = Math.min(commonPrefix(kept.ids, ids), most);
      if (length >= (best?.length ?? LEAST_REUSED)) best = { session, length };
    }
    if (!best) return undefined;
    const session = this.#own(best.session, best.length);
    const reused = await session.truncate(best.length);
    if (reused >= LEAST_REUSED) return { session, reused };
    // A ring that has gone round, or pages on disk.
    await session.close();
    return undefined;
  }

  /** Keeps a session that nobody uses any more, and closes those that do not fit the budget; also one that failed. */
  async keep(session: Session): Promise<void> {
    await session.truncate(session.ids.length);
    const { cacheBytes } = session.stats();
    this.#kept.set(session, { ids: session.ids, bytes: cacheBytes });
    for (const oldest of [...this.#kept.keys()]) {
      if (this.bytes <= this.#budget) return;
      this.#kept.delete(oldest);
      await oldest.close();
    }
  }

  /** Closes what is kept. */
  async close(): Promise<void> {
    const sessions = [...this.#kept.keys()];
    this.#kept.clear();
    for (const session of sessions) await session.close();
  }

  /** The kept session itself where all of it is wanted; else a fork, so that the rest of it stays. */
  #own(session: Session, length: number): Session {
    const kept = this.#kept.get(session)!;
    this.#kept.delete(session);
    if (kept.ids.length > length + 2) {
      try {
        const fork = session.fork();
        this.#kept.set(session, kept);
        return fork;
      } catch (error) {
        if (!(error instanceof CflowError && error.code === 'UNSUPPORTED')) throw error;
      }
    }
    session.resetStats();
    return session;
  }
}
