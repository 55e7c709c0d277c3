/** A file of a repository as a source: read in blocks, a block ahead, kept as long as there is room. */
import { CflowError } from '@cflow/format';
import type { FileSource } from '@cflow/format/node';
import type { RemoteFile } from './remote-file.js';

/** Large enough that the way to the server and back does not count. */
const BLOCK_BYTES = 8 * 1024 * 1024;
/** Tensors that together have no more than this are fetched together. */
const SHARED_BYTES = 2 * 1024 * 1024;
/** Most headers fit; longer ones are fetched whole by a second request. */
const FIRST_BYTES = 128 * 1024;

/** Blocks of several files under one bound, least recently used first. */
export class BlockCache {
  readonly #blocks = new Map<string, { bytes: number; data: Promise<Uint8Array> }>();
  readonly #limit: number;
  #held = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get(key: string, bytes: number, fetch: () => Promise<Uint8Array>): Promise<Uint8Array> {
    const block = this.#blocks.get(key) ?? { bytes, data: fetch() };
    if (this.#blocks.delete(key)) this.#held -= block.bytes;
    this.#blocks.set(key, block);
    this.#held += block.bytes;
    // A block that could not be fetched is asked for anew by whoever wants it next.
    block.data.catch(() => this.#drop(key));
    for (const oldest of this.#blocks.keys()) {
      if (this.#held <= this.#limit || oldest === key) break;
      this.#drop(oldest);
    }
    return block.data;
  }

  #drop(key: string): void {
    const block = this.#blocks.get(key);
    if (block && this.#blocks.delete(key)) this.#held -= block.bytes;
  }
}

export class RangeSource implements FileSource {
  readonly name: string;
  readonly size: number;
  readonly #remote: RemoteFile;
  readonly #cache: BlockCache;
  /** Where tensors begin, and the end of the file. */
  #starts: readonly number[];

  constructor(remote: RemoteFile, cache: BlockCache) {
    this.#remote = remote;
    this.#cache = cache;
    this.name = remote.name;
    this.size = remote.file.bytes;
    this.#starts = [0, Math.min(FIRST_BYTES, this.size), this.size];
  }

  /**
   * Blocks end where tensors do: what lies behind one in the file is seldom what is read next. Small neighbours share a
   * block, since a request costs more than their bytes.
   */
  alignTo(starts: readonly number[]): void {
    const ends = [...new Set([...starts, this.size])].filter((at) => at > 0).sort((a, b) => a - b);
    const kept = [0];
    for (const [index, end] of ends.entries()) {
      const next = ends[index + 1];
      if (next === undefined || next - kept.at(-1)! > SHARED_BYTES) kept.push(end);
    }
    this.#starts = kept;
  }

  /** @throws CflowError NOT_READABLE beyond the end, and as RemoteFile.stream */
  async read(offset: number, length: number): Promise<Uint8Array> {
    if (offset < 0 || length < 0 || offset + length > this.size) {
      throw new CflowError('NOT_READABLE', `need ${length} bytes, have ${Math.max(0, this.size - offset)}`, {
        file: this.name,
        offset,
      });
    }
    const bytes = new Uint8Array(length);
    const blocks = this.#blocks(offset, offset + length);
    const fetched = blocks.map((block) => this.#block(block));
    const next = this.#following(blocks.at(-1));
    // Nobody waits for it, so nobody would hear of its failure; whoever asks for it later will.
    if (next) this.#block(next).catch(() => undefined);
    for (const [index, [start]] of blocks.entries()) {
      const block = await fetched[index]!;
      const from = Math.max(offset, start);
      const part = block.subarray(from - start, offset + length - start);
      bytes.set(part, from - offset);
    }
    return bytes;
  }

  async close(): Promise<void> {}

  #block([start, end]: Block): Promise<Uint8Array> {
    return this.#cache.get(`${this.name}\0${start}-${end}`, end - start, async () => {
      const bytes = new Uint8Array(end - start);
      let at = 0;
      for await (const piece of this.#remote.stream(start, end)) {
        bytes.set(piece, at);
        at += piece.length;
      }
      return bytes;
    });
  }

  /** The blocks that cover [start, end). */
  #blocks(start: number, end: number): Block[] {
    const blocks: Block[] = [];
    for (let at = start; at < end; ) {
      const block = this.#blockAt(at);
      blocks.push(block);
      at = block[1];
    }
    return blocks;
  }

  #blockAt(at: number): Block {
    const starts = this.#starts;
    let low = 0;
    let high = starts.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (starts[middle]! <= at) low = middle;
      else high = middle;
    }
    const first = starts[low]!;
    const start = first + Math.floor((at - first) / BLOCK_BYTES) * BLOCK_BYTES;
    return [start, Math.min(start + BLOCK_BYTES, starts[low + 1]!)];
  }

  /** The next block of the same tensor. */
  #following(block: Block | undefined): Block | undefined {
    if (!block || block[1] - block[0] < BLOCK_BYTES || block[1] === this.size) return undefined;
    const next = this.#blockAt(block[1]);
    return this.#starts.includes(next[0]) ? undefined : next;
  }
}

type Block = readonly [start: number, end: number];
