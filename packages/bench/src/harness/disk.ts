/** What the disk gives: one file, written through to it and read past the page cache. */
import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { join } from 'node:path';
import { temporaryFolder } from './resources.js';

const PIECE = 2 ** 22;
const PIECES = 24;
/** Where memory that direct reads accept may begin within a fresh buffer: allocators put a header before it. */
const PAGE = 4096;
const ALIGNMENTS = Array.from({ length: PAGE / 16 }, (_, i) => PAGE - 16 * (i + 1)).concat(0);

const rate = (from: number) => (PIECE * PIECES) / (performance.now() - from) / 1e6;

/** 10^9 bytes a second of 96 MiB; `read` is null where direct reads are not to be had, all where nothing can be written. */
export async function diskLimits(directory: string): Promise<{ write: number; read: number | null } | null> {
  return temporaryFolder(directory, 'disk', async (folder) => {
    const file = join(folder, 'x');
    return { write: await writeThrough(file), read: await readDirect(file).catch(() => null) };
  }).catch(() => null);
}

async function writeThrough(file: string): Promise<number> {
  const piece = randomBytes(PIECE);
  const handle = await open(file, 'wx');
  try {
    const from = performance.now();
    for (let i = 0; i < PIECES; i++) await handle.write(piece, 0, PIECE, i * PIECE);
    await handle.sync();
    return rate(from);
  } finally {
    await handle.close();
  }
}

async function readDirect(file: string): Promise<number | null> {
  const direct = constants.O_DIRECT;
  if (direct === undefined) return null;
  const handle = await open(file, constants.O_RDONLY | direct);
  try {
    const buffer = await alignedFor(handle);
    const from = performance.now();
    for (let i = 0; i < PIECES; i++) await handle.read(buffer, 0, PIECE, i * PIECE);
    return rate(from);
  } finally {
    await handle.close();
  }
}

/** JavaScript does not tell addresses; the kernel refuses a wrong one. @throws its refusal, if it takes none */
async function alignedFor(handle: FileHandle): Promise<Buffer> {
  const memory = Buffer.allocUnsafeSlow(PIECE + PAGE);
  let refusal: unknown;
  for (const offset of ALIGNMENTS) {
    const buffer = memory.subarray(offset, offset + PIECE);
    try {
      await handle.read(buffer, 0, PAGE, 0);
      return buffer;
    } catch (error) {
      refusal = error;
    }
  }
  throw refusal;
}
