/** An output that outlives its process: written beside its target under a fixed name, with a journal to continue by. */

import { createHash } from 'node:crypto';
import { lstat, unlink } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { type ByteSink, CflowError, type Crc32, type ErrorCode } from '@cflow/format';
import { fileText } from '#cli-kit/bytes.js';
import { AtomicFile } from '../targets/atomic-file.js';
import { isRunning } from '../targets/owner.js';
import {
  type Facts,
  Journal,
  type JournalContents,
  readJournal,
  requireSameFacts,
  type Sum,
} from './journal.js';

/** Whichever comes first: what was written since is then secured, beside the writing. */
const SECURE_BYTES = 64 * 1024 * 1024;
const SECURE_MS = 200;

/** Less than this is written anew faster than anyone types --resume: it is not kept. */
export const KEEP_BYTES = 16 * 1024 * 1024;

/** Failures that say nothing against what was written so far. */
const CONTINUABLE: readonly ErrorCode[] = ['INTERRUPTED', 'NOT_READABLE'];

/** File systems allow 255 bytes; `.partial` and `.journal` come on top. */
const MAX_NAME_BYTES = 240;

/** The names beside a target. Always the same, so that what an interrupted process left is found. */
export function partialNames(target: string): { readonly partial: string; readonly journal: string } {
  const name = basename(target);
  const short = Buffer.byteLength(name) <= MAX_NAME_BYTES ? name : sha256(name);
  const stem = join(dirname(target), `.${short}`);
  return { partial: `${stem}.partial`, journal: `${stem}.journal` };
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

export interface ResumeOptions {
  readonly facts: Facts;
  /** Bytes of the complete output. */
  readonly bytes: number;
  readonly resume: boolean;
  readonly crc32: Crc32;
}

interface Start {
  readonly file: AtomicFile;
  readonly journal: Journal;
  readonly before: JournalContents | undefined;
  readonly discarded: number;
}

/** Call `commit` or `leave`, always. Everything but the head is written in order, each region from its start. */
export class ResumableFile implements ByteSink {
  readonly name: string;
  /** Bytes that are there already, and the checksums that they must have; 0 for a new file. */
  readonly resumedAt: number;
  /** Bytes of an interrupted conversion that were removed because nobody asked to continue it. */
  readonly discarded: number;
  readonly #file: AtomicFile;
  readonly #journal: Journal;
  readonly #claims: ReadonlyMap<number, number>;
  readonly #sum: Crc32;
  #written: { bytes: Uint8Array; end: number } | undefined;
  #readBack: Uint8Array | undefined;
  #last: Sum | undefined;
  #pending: Sum[] = [];
  #secured: number;
  #securedTime = performance.now();
  #securing: Promise<void> | undefined;
  #failure: unknown;

  private constructor(target: string, { file, journal, before, discarded }: Start, sum: Crc32) {
    this.name = target;
    this.#file = file;
    this.#journal = journal;
    this.resumedAt = before?.secured ?? 0;
    this.#claims = before?.sums ?? new Map();
    this.#secured = this.resumedAt;
    this.discarded = discarded;
    this.#sum = sum;
  }

  /**
   * Begins an output, or with `resume` goes on with one.
   * @throws CflowError OUTPUT_EXISTS (another process writes it), USAGE (what was begun is another conversion),
   *   WRITE_FAILED
   */
  static async open(target: string, options: ResumeOptions): Promise<ResumableFile> {
    const names = partialNames(target);
    const before = await readJournal(names.journal);
    if (before?.owner && isRunning(before.owner)) {
      throw new CflowError('OUTPUT_EXISTS', `process ${before.owner.pid} is writing it`, {
        file: target,
        remedy: 'wait until it is done, or end it',
      });
    }
    const left = await lstat(names.partial).catch(() => undefined);
    // A second link is the finished output itself, of a process killed just after it gave the file its name.
    const usable = before && left?.isFile() && left.nlink === 1 && left.size >= before.secured;
    if (options.resume && usable && before.secured > 0) {
      requireSameFacts(before.facts, options.facts, target);
      const file = await AtomicFile.reopen(target, options.bytes - before.secured, names.partial);
      const journal = await Journal.reopen(names.journal, target);
      return new ResumableFile(target, { file, journal, before, discarded: 0 }, options.crc32);
    }
    await removeBoth(names);
    const journal = await Journal.create(names.journal, options.facts, target);
    const file = await AtomicFile.create(target, options.bytes, names.partial).catch(async (error) => {
      await journal.close();
      await removeBoth(names);
      throw error;
    });
    const discarded = left?.isFile() && left.nlink === 1 ? left.size : 0;
    return new ResumableFile(target, { file, journal, before: undefined, discarded }, options.crc32);
  }

  get temporary(): string {
    return this.#file.temporary;
  }

  /** What was read back is there already; fixed regions are written again, since they were never read. */
  async write(offset: number, bytes: Uint8Array): Promise<void> {
    if (bytes !== this.#readBack) await this.#file.write(offset, bytes);
    this.#written = { bytes, end: offset + bytes.length };
  }

  /** What an earlier process wrote; to be handed to `write` and `crc32`, which compares it with the journal. */
  async readBack(offset: number, length: number): Promise<Uint8Array> {
    this.#readBack = await this.#file.read(offset, length);
    return this.#readBack;
  }

  /** The writer's checksum, and by the way the journal's: bytes are summed once. */
  readonly crc32: Crc32 = (bytes, before = 0) => {
    const crc = this.#sum(bytes, before);
    // Sums of anything that was not written just now, as of the head, are not for the journal.
    if (bytes !== this.#written?.bytes) return crc;
    const { end } = this.#written;
    if (before === 0 && this.#last) this.#pending.push(this.#last);
    this.#last = [end, crc];
    if (end <= this.resumedAt) this.#compare(end, crc);
    else if (this.#isDue(end)) this.#secureSoon();
    return crc;
  };

  #compare(end: number, crc: number): void {
    const claimed = this.#claims.get(end);
    if (claimed === undefined || claimed === crc) return;
    throw new CflowError('VERIFY_FAILED', 'what was written before differs from its journal', {
      file: this.temporary,
      offset: end,
      remedy: 'convert anew without --resume',
    });
  }

  #isDue(end: number): boolean {
    if (this.#securing) return false;
    return end - this.#secured >= SECURE_BYTES || performance.now() - this.#securedTime >= SECURE_MS;
  }

  #secureSoon(): void {
    this.#securing = this.#secure()
      .catch((cause) => {
        this.#failure ??= cause;
      })
      .finally(() => {
        this.#securing = undefined;
      });
  }

  /** First the bytes, then the line that vouches for them. */
  async #secure(): Promise<void> {
    if (!this.#last) return;
    const sums = [...this.#pending, this.#last].filter(([at]) => at > this.#secured);
    this.#pending = [];
    if (sums.length === 0) return;
    await this.#file.datasync();
    await this.#journal.secure(sums);
    this.#secured = sums.at(-1)![0];
    this.#securedTime = performance.now();
  }

  /** As AtomicFile.commit; the journal goes with the temporary name. */
  async commit(overwrite: boolean): Promise<void> {
    await this.#securing;
    if (this.#failure) throw this.#failure;
    await this.#journal.close();
    await this.#file.commit(overwrite);
    await unlink(partialNames(this.name).journal).catch(() => undefined);
  }

  /** Ends without an output. Keeps what `--resume` can go on with, and says so. */
  async leave(error: unknown): Promise<unknown> {
    await this.#securing;
    const continuable = error instanceof CflowError && CONTINUABLE.includes(error.code);
    if (continuable) await this.#secure().catch(() => undefined);
    await this.#journal.release().catch(() => undefined);
    await this.#journal.close().catch(() => undefined);
    if (!continuable || this.#secured < KEEP_BYTES) {
      await this.#file.discard();
      await removeBoth(partialNames(this.name));
      return error;
    }
    await this.#file.abandon();
    const problem = error.code === 'INTERRUPTED' ? 'interrupted' : error.message;
    return new CflowError(
      error.code,
      `${problem}; ${fileText(this.#secured)} are kept beside the output: continue with --resume`,
      { cause: error },
    );
  }
}

async function removeBoth({ partial, journal }: ReturnType<typeof partialNames>): Promise<void> {
  await unlink(partial).catch(() => undefined);
  await unlink(journal).catch(() => undefined);
}
