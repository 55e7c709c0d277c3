/**
 * What touches Node, imported as `@cflow/format/node`: the ByteSource over files, and checks of options and outputs.
 * Nothing else of this package does.
 */
import { constants } from 'node:buffer';
import { constants as fsConstants } from 'node:fs';
import { open } from 'node:fs/promises';
import { CflowError } from './errors.js';
import type { ByteSource } from './file/source.js';

export * from './checks.js';
export * from './package-version.js';
export * from './target.js';

/** Linux ends one read at 2,147,479,552 bytes without an error; smaller pieces also bound what the kernel pins. */
export const MAX_READ_BYTES = 64 * 1024 * 1024;

/** Opening a pipe that nobody writes to would wait for ever; without waiting it opens, and is then refused as no file. */
const OPEN_FLAGS = fsConstants.O_RDONLY | (fsConstants.O_NONBLOCK ?? 0);

/** A read that a signal interrupts is repeated; one that keeps failing is an error after all. */
const MAX_INTERRUPTIONS = 1_000;

/** What this module needs of a FileHandle, so that tests can play a file system that reads short. */
export interface ReadHandle {
  readonly fd?: number;
  /** As FileHandle.read: may read less than was asked for; 0 bytes at the end of the file. */
  read(buffer: Uint8Array, offset: number, length: number, position: number): Promise<{ bytesRead: number }>;
  /** Closes the file. */
  close(): Promise<void>;
}

export interface FileSource extends ByteSource {
  /** File descriptor, for what maps the file; valid until `close`. Absent where there is no file behind the source. */
  readonly fd?: number;
  /** Closes the file; calling it twice is harmless. */
  close(): Promise<void>;
}

/**
 * Opens a regular file for reading at any offset. Needs no write permission anywhere.
 * @throws CflowError NOT_READABLE (path and errno) if it cannot be opened or read, or is no regular file
 */
export async function openFileSource(path: string): Promise<FileSource> {
  const handle = await open(path, OPEN_FLAGS).catch((cause: unknown) =>
    unreadable(path, 'cannot open', cause),
  );
  try {
    const stats = await handle.stat();
    if (!stats.isFile()) {
      const what = stats.isDirectory() ? 'is a directory' : 'not a regular file';
      throw new CflowError('NOT_READABLE', what, { file: path, remedy: 'name a file' });
    }
    return fileSource(handle, path, stats.size);
  } catch (cause) {
    await handle.close();
    return unreadable(path, 'cannot stat', cause);
  }
}

/** Larger than any text that is read whole, and less than what a string holds. */
const MAX_TEXT_BYTES = 2 ** 28;

/**
 * A file of UTF-8 text, whole.
 * @throws CflowError as openFileSource, LIMIT_EXCEEDED for more than 256 MiB, NOT_READABLE for another encoding
 */
export async function readTextFile(path: string): Promise<string> {
  const source = await openFileSource(path);
  try {
    const { size } = source;
    if (size <= MAX_TEXT_BYTES) return decodeText(await source.read(0, size), path);
    throw new CflowError('LIMIT_EXCEEDED', `${size} bytes of text, at most ${MAX_TEXT_BYTES}`, {
      file: path,
      value: size,
      limit: MAX_TEXT_BYTES,
    });
  } finally {
    await source.close();
  }
}

/** Byte order marks of other encodings; longer ones first. */
const MARKS: readonly (readonly [string, readonly number[]])[] = [
  ['UTF-32, little endian', [0xff, 0xfe, 0, 0]],
  ['UTF-32, big endian', [0, 0, 0xfe, 0xff]],
  ['UTF-16, little endian', [0xff, 0xfe]],
  ['UTF-16, big endian', [0xfe, 0xff]],
];

/** UTF-8 text, without its byte order mark. @throws CflowError NOT_READABLE for another encoding, by name */
export function decodeText(bytes: Uint8Array, file: string): string {
  const marked = MARKS.find(([, mark]) => mark.every((byte, i) => bytes[i] === byte))?.[0];
  const encoding = marked ?? unmarkedUtf16(bytes);
  if (encoding !== undefined) throw notUtf8(`the text is ${encoding}`, file);
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw notUtf8('the text is not UTF-8', file);
  }
}

/** Text of mostly ASCII has a zero in every second byte of UTF-16. */
function unmarkedUtf16(bytes: Uint8Array): string | undefined {
  const start = bytes.subarray(0, 512);
  if (start.length < 4) return undefined;
  const zeros = [0, 0];
  for (const [i, byte] of start.entries()) if (byte === 0) zeros[i % 2]!++;
  const half = start.length / 2;
  if (zeros[1]! > 0.8 * half && zeros[0] === 0) return 'UTF-16, little endian';
  return zeros[0]! > 0.8 * half && zeros[1] === 0 ? 'UTF-16, big endian' : undefined;
}

function notUtf8(problem: string, file: string): CflowError {
  return new CflowError('NOT_READABLE', problem, { file, remedy: 'save it as UTF-8' });
}

/** As openFileSource, or undefined if there is no such file. */
export async function openUnlessMissing(path: string): Promise<FileSource | undefined> {
  try {
    return await openFileSource(path);
  } catch (error) {
    if (error instanceof CflowError && errno(error.details.cause) === 'ENOENT') return undefined;
    throw error;
  }
}

/**
 * A ByteSource of `size` bytes over an open handle.
 * `read` throws NOT_READABLE for a range beyond the end (both numbers), a failed read or a file that shrank, and
 * LIMIT_EXCEEDED for more bytes than one buffer can hold.
 */
export function fileSource(handle: ReadHandle, name: string, size: number): FileSource {
  let closed: Promise<void> | undefined;
  return {
    name,
    size,
    ...(handle.fd === undefined ? {} : { fd: handle.fd }),
    async read(offset, length) {
      checkRange(name, size, offset, length);
      const bytes = new Uint8Array(length);
      for (let done = 0; done < length; ) {
        const wanted = Math.min(length - done, MAX_READ_BYTES);
        const got = await readPiece(handle, name, bytes, done, wanted, offset + done);
        if (got === 0) return shrank(name, offset, length, done);
        done += got;
      }
      return bytes;
    },
    close() {
      closed ??= handle.close();
      return closed;
    },
  };
}

function checkRange(file: string, size: number, offset: number, length: number): void {
  if (!Number.isSafeInteger(offset) || !Number.isSafeInteger(length) || offset < 0 || length < 0) {
    throw new CflowError('INTERNAL', `not a range: offset ${offset}, length ${length}`, { file });
  }
  if (offset > size || length > size - offset) {
    const value = Math.max(0, size - offset);
    throw new CflowError('NOT_READABLE', `need ${length} bytes, have ${value}`, {
      file,
      offset,
      value,
      limit: size,
      remedy: 'the file is shorter than its contents say; fetch it again',
    });
  }
  if (length > constants.MAX_LENGTH) {
    throw new CflowError('LIMIT_EXCEEDED', `${length} bytes in one read, at most ${constants.MAX_LENGTH}`, {
      file,
      offset,
      value: length,
      limit: constants.MAX_LENGTH,
    });
  }
}

/** One read of at most MAX_READ_BYTES, repeated while signals interrupt it. Returns the bytes read, 0 at the end. */
async function readPiece(
  handle: ReadHandle,
  file: string,
  bytes: Uint8Array,
  at: number,
  length: number,
  position: number,
): Promise<number> {
  for (let interruptions = 0; ; interruptions++) {
    try {
      return (await handle.read(bytes, at, length, position)).bytesRead;
    } catch (cause) {
      if (errno(cause) === 'EINTR' && interruptions < MAX_INTERRUPTIONS) continue;
      return unreadable(file, `cannot read ${length} bytes`, cause, position);
    }
  }
}

function shrank(file: string, offset: number, length: number, done: number): never {
  throw new CflowError('NOT_READABLE', `need ${length} bytes, have ${done}`, {
    file,
    offset,
    remedy: 'the file became shorter while it was read',
  });
}

function unreadable(file: string, problem: string, cause: unknown, offset?: number): never {
  if (cause instanceof CflowError) throw cause;
  throw new CflowError('NOT_READABLE', `${problem}: ${errno(cause) ?? String(cause)}`, {
    file,
    offset,
    cause,
  });
}

/** The code of a system error, e.g. `ENOENT`. */
export function errno(cause: unknown): string | undefined {
  const code = cause instanceof Error && 'code' in cause ? cause.code : undefined;
  return typeof code === 'string' ? code : undefined;
}
