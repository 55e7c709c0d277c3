import {
  access,
  constants,
  type FileHandle,
  link,
  open,
  rename,
  stat,
  statfs,
  unlink,
} from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { type ByteSink, CflowError } from '@cflow/format';
import { temporaryName } from './orphans.js';

/** Written bytes after which the disk is set to work on them, so that `commit` has little left to wait for. */
const SYNC_BYTES = 64 * 1024 * 1024;

/** How file systems without hard links say so. */
const WITHOUT_LINKS = new Set(['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EMLINK']);

/**
 * A file that is complete or absent: written under a temporary name beside the target, synced, renamed. Call `commit`
 * or `discard`, always.
 */
export class AtomicFile implements ByteSink {
  readonly name: string;
  readonly temporary: string;
  readonly #handle: FileHandle;
  #unsynced = 0;
  #syncing: Promise<void> | undefined;
  #syncFailure: unknown;

  private constructor(target: string, temporary: string, handle: FileHandle) {
    this.name = target;
    this.temporary = temporary;
    this.#handle = handle;
  }

  /**
   * `temporary`: its name beside the target; a random one if absent.
   * @throws CflowError WRITE_FAILED if the directory cannot be written or has not `bytes` free
   */
  static async create(target: string, bytes: number, temporary = temporaryName(target)): Promise<AtomicFile> {
    await checkSpace(dirname(target), target, bytes);
    const handle = await open(temporary, 'wx').catch((cause) => failed(target, 'cannot create', cause));
    return new AtomicFile(target, temporary, handle);
  }

  /** One that an earlier process left behind, of which `bytes` are still to come. */
  static async reopen(target: string, bytes: number, temporary: string): Promise<AtomicFile> {
    await checkSpace(dirname(target), target, bytes);
    const flags = constants.O_RDWR | (constants.O_NOFOLLOW ?? 0);
    const handle = await open(temporary, flags).catch((cause) => failed(target, 'cannot continue', cause));
    return new AtomicFile(target, temporary, handle);
  }

  /** What lies in the file so far; fewer bytes at its end. */
  async read(offset: number, length: number): Promise<Uint8Array> {
    const bytes = new Uint8Array(length);
    let done = 0;
    while (done < length) {
      const { bytesRead } = await this.#handle
        .read(bytes, done, length - done, offset + done)
        .catch((cause) => failed(this.name, `cannot read back byte ${offset + done}`, cause));
      if (bytesRead === 0) break;
      done += bytesRead;
    }
    return bytes.subarray(0, done);
  }

  /** Until it returns, what was written may be lost with the power. */
  datasync(): Promise<void> {
    return this.#handle.datasync();
  }

  /** Leaves the file as it is, for a later `reopen`. */
  async abandon(): Promise<void> {
    await this.#syncing;
    await this.#handle.close().catch(() => undefined);
  }

  /** Writes all of `bytes` at `offset`. @throws CflowError WRITE_FAILED */
  async write(offset: number, bytes: Uint8Array): Promise<void> {
    let done = 0;
    while (done < bytes.length) {
      const { bytesWritten } = await this.#handle
        .write(bytes, done, bytes.length - done, offset + done)
        .catch((cause) => failed(this.name, `cannot write at byte ${offset + done}`, cause));
      done += bytesWritten;
    }
    this.#unsynced += bytes.length;
    if (this.#unsynced >= SYNC_BYTES && !this.#syncing) this.#syncAhead();
  }

  /** A system reports a failed sync once, so `commit` must learn of one that failed here. */
  #syncAhead(): void {
    this.#unsynced = 0;
    this.#syncing = this.#handle
      .datasync()
      .catch((cause) => {
        this.#syncFailure ??= cause;
      })
      .finally(() => {
        this.#syncing = undefined;
      });
  }

  /** Makes the target appear. Without `overwrite` a file that came to exist meanwhile is left alone. */
  async commit(overwrite: boolean): Promise<void> {
    try {
      await this.#syncing;
      if (this.#syncFailure) throw this.#syncFailure;
      await this.#handle.sync();
      await this.#handle.close();
      if (overwrite) await rename(this.temporary, this.name);
      else {
        await this.#publish();
      }
      await syncDirectory(dirname(this.name));
    } catch (cause) {
      await this.discard();
      failed(this.name, 'cannot finish', cause);
    }
  }

  /** A link fails if the name is taken, which a rename does not; where there are no hard links the rename must do. */
  async #publish(): Promise<void> {
    try {
      await link(this.temporary, this.name);
    } catch (cause) {
      if (!WITHOUT_LINKS.has((cause as NodeJS.ErrnoException).code ?? '')) throw cause;
      return rename(this.temporary, this.name);
    }
    await unlink(this.temporary);
  }

  /** Closes and removes the temporary file. */
  async discard(): Promise<void> {
    await this.abandon();
    await unlink(this.temporary).catch(() => undefined);
  }
}

/** Longest file name on common file systems (NAME_MAX of Linux, macOS and NTFS). */
const MOST_NAME_BYTES = 255;

/** @throws CflowError WRITE_FAILED for a name that no file system takes */
export function checkName(target: string): void {
  const bytes = Buffer.byteLength(basename(target));
  if (bytes <= MOST_NAME_BYTES) return;
  throw new CflowError(
    'WRITE_FAILED',
    `ENAMETOOLONG: the name has ${bytes} bytes, the limit is ${MOST_NAME_BYTES}`,
    { file: target, value: bytes, limit: MOST_NAME_BYTES, remedy: 'choose a shorter name' },
  );
}

/**
 * What can be said of an output before anything is read or fetched for it: its directory is there and can be written.
 * @throws CflowError WRITE_FAILED
 */
export async function checkDirectory(target: string): Promise<void> {
  const directory = dirname(target);
  const stats = await stat(directory).catch((cause) =>
    failed(target, `cannot use the directory ${directory}`, cause, `create it with mkdir -p ${directory}`),
  );
  if (!stats.isDirectory()) failed(target, `${directory} is not a directory`, { code: 'ENOTDIR' });
  await access(directory, constants.W_OK | constants.X_OK).catch((cause) =>
    failed(
      target,
      `cannot write to the directory ${directory}`,
      cause,
      'choose an output in another directory',
    ),
  );
}

/** @throws CflowError WRITE_FAILED if the directory cannot be used or has not `bytes` free */
export async function checkSpace(directory: string, target: string, bytes: number): Promise<void> {
  const disk = await statfs(directory).catch((cause) =>
    failed(target, `cannot use the directory ${directory}`, cause),
  );
  const free = disk.bavail * disk.bsize;
  if (free < bytes) {
    throw new CflowError('WRITE_FAILED', `needs ${bytes} bytes, the disk has ${free} free`, {
      file: target,
      remedy: 'free some space or choose another disk',
    });
  }
}

async function syncDirectory(directory: string): Promise<void> {
  const handle = await open(directory, 'r');
  // Some file systems refuse to sync a directory; the file itself is already safe.
  await handle.sync().catch(() => undefined);
  await handle.close();
}

/** @throws CflowError OUTPUT_EXISTS for EEXIST, otherwise WRITE_FAILED with the code of `cause` */
export function failed(file: string, what: string, cause: unknown, remedy?: string): never {
  const code = (cause as NodeJS.ErrnoException).code ?? String(cause);
  if (code === 'EEXIST') {
    throw new CflowError('OUTPUT_EXISTS', 'exists', { file, remedy: 'use --overwrite to replace it', cause });
  }
  throw new CflowError('WRITE_FAILED', `${what}: ${code}`, { file, cause, remedy });
}
