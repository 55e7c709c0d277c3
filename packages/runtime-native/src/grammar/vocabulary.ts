/** A vocabulary as a trie of bytes, for masks: which tokens continue a text of a grammar. */
import type { TextTokenizer } from '../text/tokenizer.js';
import { type Machine, NOWHERE } from './machine.js';

/** Tokens between two turns of the event loop. */
const AT_ONCE = 8192;

/** Nodes in depth-first order: a node's subtree follows it, up to `end`. */
export class Vocabulary {
  readonly size: number;
  readonly #bytes: readonly (Uint8Array | undefined)[];
  readonly #byte: Uint8Array;
  readonly #depth: Uint16Array;
  readonly #end: Int32Array;
  /** A token of each node, and a further one with the same bytes of each token; -1 = none. */
  readonly #token: Int32Array;
  readonly #same: Int32Array;
  readonly #longest: number;

  /** @param bytes of each token; undefined or empty for one that adds no text */
  constructor(bytes: readonly (Uint8Array | undefined)[]) {
    this.size = bytes.length;
    this.#bytes = bytes;
    const ids = bytes.flatMap((each, id) => (each && each.length > 0 ? [id] : []));
    // As texts, whose comparison is not a call out of JavaScript: ten times as fast.
    const keys = bytes.map((each) => (each ? Buffer.from(each).toString('latin1') : ''));
    ids.sort((a, b) => (keys[a]! < keys[b]! ? -1 : keys[a] === keys[b] ? a - b : 1));
    const nodes = { byte: [] as number[], depth: [] as number[], end: [] as number[], token: [] as number[] };
    this.#same = new Int32Array(bytes.length).fill(-1);
    /** Nodes from the root to the last token. */
    let path: number[] = [];
    let before: Uint8Array = new Uint8Array(0);
    let longest = 0;
    const close = (depth: number) => {
      for (const node of path.slice(depth)) nodes.end[node] = nodes.byte.length;
      path = path.slice(0, depth);
    };
    for (const id of ids) {
      const token = bytes[id]!;
      let shared = 0;
      while (shared < before.length && before[shared] === token[shared]) shared++;
      close(shared);
      for (let i = shared; i < token.length; i++) {
        path.push(nodes.byte.push(token[i]!) - 1);
        nodes.depth.push(i);
        nodes.end.push(0);
        nodes.token.push(-1);
      }
      const node = path.at(-1)!;
      this.#same[id] = nodes.token[node]!;
      nodes.token[node] = id;
      before = token;
      longest = Math.max(longest, token.length);
    }
    close(0);
    this.#byte = Uint8Array.from(nodes.byte);
    this.#depth = Uint16Array.from(nodes.depth);
    this.#end = Int32Array.from(nodes.end);
    this.#token = Int32Array.from(nodes.token);
    this.#longest = longest;
  }

  /** The position after a token, or `NOWHERE`. */
  advance(machine: Machine, from: number, id: number): number {
    let at = from;
    for (const byte of this.#bytes[id] ?? []) {
      at = machine.step(at, byte);
      if (at === NOWHERE) break;
    }
    return at;
  }

  /** Calls back for every token that may follow. */
  eachAllowed(machine: Machine, from: number, found: (id: number) => void): void {
    const positions = new Int32Array(this.#longest + 1).fill(from);
    const count = this.#byte.length;
    for (let node = 0; node < count; ) {
      const depth = this.#depth[node]!;
      const position = machine.step(positions[depth]!, this.#byte[node]!);
      if (position === NOWHERE) {
        node = this.#end[node]!;
        continue;
      }
      positions[depth + 1] = position;
      for (let id = this.#token[node]!; id >= 0; id = this.#same[id]!) found(id);
      node++;
    }
  }
}

const vocabularies = new WeakMap<TextTokenizer, Promise<Vocabulary>>();

/** The vocabulary of a tokenizer, built once, with turns for the event loop. */
export function vocabularyOf(tokenizer: TextTokenizer): Promise<Vocabulary> {
  const known = vocabularies.get(tokenizer) ?? build(tokenizer);
  vocabularies.set(tokenizer, known);
  return known;
}

async function build(tokenizer: TextTokenizer): Promise<Vocabulary> {
  const bytes: (Uint8Array | undefined)[] = [];
  for (let id = 0; id < tokenizer.vocabSize; id++) {
    if (id % AT_ONCE === AT_ONCE - 1) await new Promise(setImmediate);
    bytes.push(tokenizer.textBytesOf(id));
  }
  return new Vocabulary(bytes);
}
