/** Reading of rows by the thread that works on them. */
import { readSync } from 'node:fs';
import { errno } from '@cflow/format/node';
import { CflowError } from '@cflow/format/stripes';
import type { FileRows } from '../sources/checkpoint.js';

/** A read that a signal interrupts is repeated; one that keeps failing is an error after all. */
const MAX_INTERRUPTIONS = 1_000;

/** Kept from stripe to stripe: fresh pages cost about as much as the read. */
let scratch = Buffer.alloc(0);

/**
 * The bytes of some rows. They are this thread's until its next call, and begin at an address that suits any number.
 * @throws CflowError NOT_READABLE if a read fails or the file became shorter
 */
export function readFileRows({ file, fd, offset, bytes }: FileRows): Uint8Array {
  if (scratch.length < bytes) scratch = Buffer.allocUnsafeSlow(bytes);
  for (let done = 0; done < bytes; ) {
    const got = readPiece(file, fd, scratch, done, bytes - done, offset + done);
    if (got === 0) {
      throw new CflowError('NOT_READABLE', `need ${bytes} bytes, have ${done}`, {
        file,
        offset,
        remedy: 'the file became shorter while it was read',
      });
    }
    done += got;
  }
  return scratch.subarray(0, bytes);
}

function readPiece(
  file: string,
  fd: number,
  into: Uint8Array,
  at: number,
  length: number,
  position: number,
): number {
  for (let interruptions = 0; ; interruptions++) {
    try {
      return readSync(fd, into, at, length, position);
    } catch (cause) {
      if (errno(cause) === 'EINTR' && interruptions < MAX_INTERRUPTIONS) continue;
      throw new CflowError('NOT_READABLE', `cannot read ${length} bytes: ${errno(cause) ?? String(cause)}`, {
        file,
        offset: position,
        cause,
      });
    }
  }
}
