import { type FileHandle, open } from 'node:fs/promises';
import { type ByteSource, CflowError } from '@cflow/format';

/** Node silently shortens reads near 2 GiB, and a Buffer has a limit: no single read is larger than this. */
const LARGEST_READ = 64 * 1024 * 1024;

/** A file opened for reading. */
export interface FileSource extends ByteSource {
  close(): Promise<void>;
}

/**
 * Opens a regular file. Needs no write permission anywhere.
 * @throws CflowError NOT_READABLE with the system's error code
 */
export async function openFileSource(path: string): Promise<FileSource> {
  const handle = await open(path, 'r').catch((cause) => unreadable(path, cause));
  try {
    const stat = await handle.stat();
    if (!stat.isFile()) {
      throw new CflowError('NOT_READABLE', stat.isDirectory() ? 'is a directory' : 'is not a regular file', {
        file: path,
      });
    }
    return new NodeFileSource(path, stat.size, handle);
  } catch (error) {
    await handle.close();
    throw error;
  }
}

class NodeFileSource implements FileSource {
  readonly name: string;
  readonly size: number;
  readonly #handle: FileHandle;

  constructor(name: string, size: number, handle: FileHandle) {
    this.name = name;
    this.size = size;
    this.#handle = handle;
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    const bytes = new Uint8Array(length);
    for (let done = 0; done < length; ) {
      const piece = Math.min(LARGEST_READ, length - done);
      const { bytesRead } = await this.#handle
        .read(bytes, done, piece, offset + done)
        .catch((cause) => unreadable(this.name, cause));
      if (bytesRead === 0) {
        throw new CflowError('NOT_READABLE', `the file ended ${length - done} bytes early`, {
          file: this.name,
          offset: offset + done,
          remedy: 'it was shortened while it was being read',
        });
      }
      done += bytesRead;
    }
    return bytes;
  }

  async close(): Promise<void> {
    await this.#handle.close();
  }
}

const REMEDIES: Record<string, string> = {
  ENOENT: 'check the path',
  EACCES: 'check the permissions',
  EISDIR: 'give a file, not a directory',
};

function unreadable(file: string, cause: NodeJS.ErrnoException): never {
  const code = cause.code ?? 'unknown error';
  throw new CflowError('NOT_READABLE', `cannot be read: ${code}`, { file, remedy: REMEDIES[code], cause });
}
