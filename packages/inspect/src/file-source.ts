/** A file as a ByteSource, over node:fs. */
import { type FileHandle, open } from 'node:fs/promises';
import { type ByteSource, CflowError } from '@cflow/format';

/** One read of more than 2 GiB comes back short on Linux; smaller pieces also bound what the kernel pins. */
export const MAX_PIECE_BYTES = 64 * 1024 * 1024;

export interface FileSource extends ByteSource {
  close(): Promise<void>;
}

/** Reads into `buffer` at a file position, as FileHandle.read does; may read short. */
export type ReadAt = (
  buffer: Uint8Array,
  offset: number,
  length: number,
  position: number,
) => Promise<{ bytesRead: number }>;

/**
 * Opens a file for reading.
 * @throws CflowError NOT_READABLE with the errno if it cannot be opened, or is no regular file
 */
export async function openFileSource(path: string): Promise<FileSource> {
  const handle = await open(path, 'r').catch((cause) => unreadable(path, 'cannot be opened', cause));
  try {
    const stat = await handle.stat();
    if (!stat.isFile()) {
      throw new CflowError('NOT_READABLE', 'is not a regular file', {
        file: path,
        remedy: 'name a .cflow or .vflow file',
      });
    }
    return source(path, stat.size, handle);
  } catch (error) {
    await handle.close();
    throw error;
  }
}

function source(path: string, size: number, handle: FileHandle): FileSource {
  const readAt: ReadAt = (buffer, offset, length, position) => handle.read(buffer, offset, length, position);
  return {
    name: path,
    size,
    read: (offset, length) => readFully(readAt, path, offset, length),
    close: () => handle.close(),
  };
}

/** Exactly `length` bytes, however short the single reads are. */
export async function readFully(
  readAt: ReadAt,
  path: string,
  offset: number,
  length: number,
): Promise<Uint8Array> {
  const bytes = new Uint8Array(length);
  for (let done = 0; done < length; ) {
    const piece = Math.min(MAX_PIECE_BYTES, length - done);
    const { bytesRead } = await readAt(bytes, done, piece, offset + done).catch((cause) =>
      unreadable(path, `cannot read ${piece} bytes`, cause, offset + done),
    );
    if (bytesRead === 0) {
      throw new CflowError('NOT_READABLE', `need ${length} bytes, have ${done}`, {
        file: path,
        offset,
        remedy: 'the file became shorter while it was read',
      });
    }
    done += bytesRead;
  }
  return bytes;
}

function unreadable(file: string, problem: string, cause: unknown, offset?: number): never {
  const errno = (cause as NodeJS.ErrnoException).code ?? String(cause);
  throw new CflowError('NOT_READABLE', `${problem}: ${errno}`, { file, offset, cause });
}
