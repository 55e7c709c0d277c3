/** Files of a repository into the cache: continued where an earlier process stopped, and checked before they count. */
import { createHash, type Hash } from 'node:crypto';
import { type FileHandle, mkdir, open, rename, statfs, unlink } from 'node:fs/promises';
import { dirname } from 'node:path';
import { CflowError } from '@cflow/format';
import { errno } from '@cflow/format/node';
import { throwIfInterrupted } from '../pipeline/interrupt.js';
import { type HubCache, unwritable } from './cache.js';
import { changedError } from './errors.js';
import type { HubFile } from './listing.js';
import { locked } from './lock.js';
import type { RemoteFile } from './remote-file.js';

/** Files that are fetched at the same time; one connection seldom gets all that a line gives. */
const FILES_AT_A_TIME = 4;
const READ_BYTES = 4 * 1024 * 1024;

export interface DownloadOptions {
  readonly signal?: AbortSignal | undefined;
  /** Bytes that are there so far, of how many. */
  readonly onProgress?: ((done: number, total: number) => void) | undefined;
}

/**
 * Fetches what the cache lacks and links all of it into the snapshot.
 * @throws CflowError as RemoteFile.stream; VERIFY_FAILED if a hash differs; WRITE_FAILED
 */
export async function downloadAll(
  cache: HubCache,
  commit: string,
  remotes: readonly RemoteFile[],
  options: DownloadOptions,
): Promise<void> {
  const total = remotes.reduce((sum, { file }) => sum + file.bytes, 0);
  await checkSpace(cache, remotes);
  let done = 0;
  const queue = [...remotes];
  const failure = new AbortController();
  const worker = async () => {
    for (let remote = queue.shift(); remote && !failure.signal.aborted; remote = queue.shift()) {
      const onBytes = (bytes: number) => {
        // One that failed ends the others at their next piece; what they have stays for later.
        if (failure.signal.aborted) throw failure.signal.reason;
        throwIfInterrupted(options.signal);
        done += bytes;
        options.onProgress?.(done, total);
      };
      const lock = `${cache.blob(remote.file)}.cflow-lock`;
      await mkdir(dirname(lock), { recursive: true }).catch((cause) => {
        throw unwritable(lock, cause);
      });
      await locked(lock, options.signal, () => download(cache, remote, onBytes));
      await cache.link(commit, remote.file);
    }
  };
  const workers = Array.from({ length: FILES_AT_A_TIME }, () =>
    worker().catch((error) => {
      if (!failure.signal.aborted) failure.abort(error);
    }),
  );
  await Promise.all(workers);
  if (failure.signal.aborted) throw failure.signal.reason;
}

async function checkSpace(cache: HubCache, remotes: readonly RemoteFile[]): Promise<void> {
  await mkdir(cache.dir, { recursive: true }).catch((cause) => {
    throw unwritable(cache.dir, cause);
  });
  let needed = 0;
  for (const { file } of remotes) if (!(await cache.hasBlob(file))) needed += file.bytes;
  const disk = await statfs(cache.dir);
  const free = disk.bavail * disk.bsize;
  if (needed <= free) return;
  throw new CflowError('WRITE_FAILED', `needs up to ${needed} bytes, the disk has ${free} free`, {
    file: cache.dir,
    remedy: 'use --no-cache, free some space, or set HF_HOME to another disk',
  });
}

/** `onBytes` gets every byte once, whether fetched or found; after a damaged beginning also less than none. */
async function download(
  cache: HubCache,
  remote: RemoteFile,
  onBytes: (bytes: number) => void,
): Promise<void> {
  const { file } = remote;
  if (await cache.hasBlob(file)) return onBytes(file.bytes);
  const blob = cache.blob(file);
  // The Python library's unfinished files are called `.incomplete`; it may be at work on one.
  const partial = `${blob}.cflow-incomplete`;
  const handle = await openPartial(partial);
  try {
    const found = await foundBytes(handle, file);
    let hash = await resumed(handle, found, contentHash(file), onBytes);
    await append(handle, remote, found, hash, onBytes);
    if (found > 0 && !matches(file, hash)) {
      // What was there was bad, perhaps lost with the power; what comes now is all new.
      onBytes(-file.bytes);
      await handle.truncate(0);
      hash = contentHash(file);
      await append(handle, remote, 0, hash, onBytes);
    }
    await publish(handle, { cache, remote, hash, partial, blob });
  } finally {
    await handle.close();
  }
}

async function publish(
  handle: FileHandle,
  {
    cache,
    remote,
    hash,
    partial,
    blob,
  }: { cache: HubCache; remote: RemoteFile; hash: Hash; partial: string; blob: string },
): Promise<void> {
  try {
    requireHash(remote, hash);
  } catch (error) {
    await unlink(partial).catch(() => undefined);
    throw error;
  }
  try {
    await handle.sync();
    await rename(partial, blob);
  } catch (cause) {
    // On a disk that machines share, another one may have been faster.
    if (errno(cause) === 'ENOENT' && (await cache.hasBlob(remote.file))) return;
    throw unwritable(blob, cause);
  }
}

async function openPartial(path: string): Promise<FileHandle> {
  try {
    await mkdir(dirname(path), { recursive: true });
    return await open(path, 'r+').catch(() => open(path, 'wx+'));
  } catch (cause) {
    throw unwritable(path, cause);
  }
}

async function foundBytes(handle: FileHandle, { bytes }: HubFile): Promise<number> {
  const { size } = await handle.stat();
  if (size <= bytes) return size;
  await handle.truncate(0);
  return 0;
}

/** Hashes what is there. */
async function resumed(
  handle: FileHandle,
  found: number,
  hash: Hash,
  onBytes: (bytes: number) => void,
): Promise<Hash> {
  const buffer = Buffer.allocUnsafe(Math.min(found, READ_BYTES));
  for (let at = 0; at < found; ) {
    const { bytesRead } = await handle.read(buffer, 0, Math.min(buffer.length, found - at), at);
    if (bytesRead === 0) throw new CflowError('INTERNAL', `a file became shorter than ${found} bytes`);
    hash.update(buffer.subarray(0, bytesRead));
    at += bytesRead;
    onBytes(bytesRead);
  }
  return hash;
}

async function append(
  handle: FileHandle,
  remote: RemoteFile,
  from: number,
  hash: Hash,
  onBytes: (bytes: number) => void,
): Promise<void> {
  let at = from;
  for await (const piece of remote.stream(from, remote.file.bytes)) {
    await writeFully(handle, piece, at).catch((cause) => {
      throw unwritable(remote.name, cause);
    });
    hash.update(piece);
    at += piece.length;
    onBytes(piece.length);
  }
}

async function writeFully(handle: FileHandle, bytes: Uint8Array, offset: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    done += (await handle.write(bytes, done, bytes.length - done, offset + done)).bytesWritten;
  }
}

/** The hash that the Hub gives of a file: SHA-256 of large ones, otherwise what git computes. */
export function contentHash({ sha256, bytes }: HubFile): Hash {
  return sha256 ? createHash('sha256') : createHash('sha1').update(`blob ${bytes}\0`);
}

function matches({ sha256, oid }: HubFile, hash: Hash): boolean {
  return hash.copy().digest('hex') === (sha256 ?? oid);
}

/** @throws CflowError VERIFY_FAILED with both hashes */
export function requireHash(remote: RemoteFile, hash: Hash): void {
  if (matches(remote.file, hash)) return;
  const { sha256, oid } = remote.file;
  const kind = sha256 ? 'SHA-256' : 'git SHA-1';
  throw changedError(remote.place, `${kind} is ${hash.copy().digest('hex')}, the Hub says ${sha256 ?? oid}`);
}

/** A small file whole and checked, past the cache. */
export async function fetchWhole(remote: RemoteFile): Promise<Uint8Array> {
  const { file } = remote;
  const bytes = new Uint8Array(file.bytes);
  let at = 0;
  for await (const piece of remote.stream(0, file.bytes)) {
    bytes.set(piece, at);
    at += piece.length;
  }
  requireHash(remote, contentHash(file).update(bytes));
  return bytes;
}
