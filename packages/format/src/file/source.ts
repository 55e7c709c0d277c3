import { CflowError } from '../errors.js';

/** Random access to bytes. Files, Blobs and HTTP ranges implement it where they are used; this package does no I/O. */
export interface ByteSource {
  /** What errors call it: a path or URL. */
  readonly name: string;
  /** Total bytes. */
  readonly size: number;
  /** Exactly `length` bytes from `offset`; implementations loop over short reads and throw if the source ends early. */
  read(offset: number, length: number): Promise<Uint8Array>;
}

/** Sequential and, for the head that is rewritten at the end, positioned output. */
export interface ByteSink {
  readonly name: string;
  /** Writes all of `bytes` at `offset`. */
  write(offset: number, bytes: Uint8Array): Promise<void>;
}

/** Reads after checking the range against the size, in a form that cannot overflow. */
export async function readExactly(
  source: ByteSource,
  offset: number,
  length: number,
  field: string,
): Promise<Uint8Array> {
  if (offset > source.size || length > source.size - offset) {
    throw new CflowError(
      'FORMAT_INVALID',
      `need ${length} bytes, have ${Math.max(0, source.size - offset)}`,
      {
        file: source.name,
        field,
        offset,
        remedy: 'the file is truncated or its tables lie; convert it again',
      },
    );
  }
  return source.read(offset, length);
}

/** A source over bytes in memory. */
export function memorySource(bytes: Uint8Array, name = 'memory'): ByteSource {
  return {
    name,
    size: bytes.length,
    read: async (offset, length) => bytes.subarray(offset, offset + length),
  };
}
