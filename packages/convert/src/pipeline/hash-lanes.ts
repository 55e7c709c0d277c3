/** SHA-256 of many files by one thread, two at a time. */
import { closeSync, openSync, readSync } from 'node:fs';
import type { Sha256Blocks } from '@cflow/runtime-native/sha256';

const BLOCK = 64;
/** Whole blocks; small enough to stay in a cache between reading and hashing. */
const READ_BYTES = 256 * 1024;
const WORDS = 8;
/** FIPS 180-4, 5.3.3. */
const INITIAL = [
  0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
];
const NOTHING = new Uint8Array(0);

export interface HashJob {
  readonly path: string;
  done(sha256: string): void;
  failed(error: unknown): void;
}

interface Open {
  readonly job: HashJob;
  readonly fd: number;
  bytes: number;
  ended: boolean;
}

/** A file at a time; its words are its part of the states of both lanes. */
class Lane {
  readonly #words: Uint32Array;
  /** A padded end needs up to two blocks more than were read. */
  readonly #buffer = Buffer.allocUnsafeSlow(READ_BYTES + 2 * BLOCK);
  #open: Open | undefined;

  constructor(words: Uint32Array) {
    this.#words = words;
  }

  /** The next blocks of its file, of the next job's if it has none; empty if there is none either. */
  next(takeJob: () => HashJob | undefined): Uint8Array {
    for (;;) {
      const job = this.#open?.job ?? takeJob();
      if (!job) return NOTHING;
      try {
        this.#open ??= this.#start(job);
        return this.#read(this.#open);
      } catch (error) {
        this.#close();
        job.failed(error);
      }
    }
  }

  /** To be called when the blocks are in the words. */
  settle(): void {
    if (!this.#open?.ended) return;
    const { job } = this.#open;
    this.#close();
    job.done([...this.#words].map((word) => word.toString(16).padStart(8, '0')).join(''));
  }

  #start(job: HashJob): Open {
    this.#words.set(INITIAL);
    return { job, fd: openSync(job.path, 'r'), bytes: 0, ended: false };
  }

  #read(open: Open): Uint8Array {
    let filled = 0;
    while (filled < READ_BYTES && !open.ended) {
      const got = readSync(open.fd, this.#buffer, filled, READ_BYTES - filled, null);
      open.ended = got === 0;
      filled += got;
    }
    open.bytes += filled;
    return this.#buffer.subarray(0, open.ended ? this.#pad(filled, open.bytes) : filled);
  }

  /** One bit, zeros, and the number of bits, big endian, at the end of a block. Returns the bytes of whole blocks. */
  #pad(filled: number, bytes: number): number {
    const end = Math.ceil((filled + 9) / BLOCK) * BLOCK;
    this.#buffer.fill(0, filled, end);
    this.#buffer[filled] = 0x80;
    this.#buffer.writeBigUInt64BE(BigInt(bytes) * 8n, end - 8);
    return end;
  }

  #close(): void {
    if (this.#open) closeSync(this.#open.fd);
    this.#open = undefined;
  }
}

/** Works until `takeJob` has no more. */
export function hashFiles(blocks: Sha256Blocks, takeJob: () => HashJob | undefined): void {
  const states = new Uint32Array(2 * WORDS);
  const lanes = [new Lane(states.subarray(0, WORDS)), new Lane(states.subarray(WORDS))] as const;
  for (;;) {
    const [first, second] = [lanes[0].next(takeJob), lanes[1].next(takeJob)];
    if (first.length + second.length === 0) return;
    blocks(states, first, second);
    for (const lane of lanes) lane.settle();
  }
}
