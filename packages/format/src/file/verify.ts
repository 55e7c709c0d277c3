/** The whole truth about a file: every region, tile header, padding byte and checksum. */

import { checkStripe, stripeId } from '../tiles/tile-header.js';
import { type Crc32, crcHex, crc32 as portableCrc32 } from './checksum.js';
import type { ModelFile, Region } from './layout-types.js';
import { checksummed, type OpenOptions } from './reader.js';
import type { ByteSource } from './source.js';
import { streamPieces } from './tensors.js';

/** One fault, with the region and absolute byte offset where it is. */
export interface Fault {
  readonly region: string;
  readonly offset: number;
  readonly problem: string;
}

const PIECE_BYTES = 4 * 1024 * 1024;

/**
 * Reads every byte once, in order, and yields each fault; none = the file is what it claims. `openModel` has already
 * checked head, tables and coverage. Memory: one stripe.
 */
export async function* verifyModel(
  source: ByteSource,
  file: ModelFile,
  { crc32 = portableCrc32 }: OpenOptions = {},
): AsyncGenerator<Fault> {
  const sums = new Set(checksummed(file.layout).map(({ name }) => name));
  for (const region of file.layout.regions) {
    if (region.kind === 'padding') yield* checkPadding(source, region);
    else if (region.kind === 'document' || region.kind === 'other')
      yield* checkSection(source, region, crc32);
    else if (region.stream) yield* checkStream(source, file, region, crc32);
    else if (sums.has(region.name)) {
      const bytes = await source.read(region.offset, region.length);
      yield* compare(file, region, crc32(bytes));
    }
  }
}

function* compare(file: ModelFile, region: Region, actual: number): Generator<Fault> {
  const claimed = file.metadata.checksums[region.name];
  if (claimed !== undefined && claimed !== crcHex(actual)) {
    yield {
      region: region.name,
      offset: region.offset,
      problem: `checksum is ${crcHex(actual)}, metadata say ${claimed}`,
    };
  }
}

async function* checkSection(source: ByteSource, region: Region, crc32: Crc32): AsyncGenerator<Fault> {
  const { name, offset, used } = region;
  const actual = crc32(await source.read(offset, used!.length));
  if (actual === used!.checksum) return;
  const claimed = crcHex(used!.checksum);
  yield { region: name, offset, problem: `checksum is ${crcHex(actual)}, the section table says ${claimed}` };
}

async function* checkPadding(source: ByteSource, { name, offset, length }: Region): AsyncGenerator<Fault> {
  const bytes = await source.read(offset, length);
  const at = bytes.findIndex((byte) => byte !== 0);
  if (at >= 0) yield { region: name, offset: offset + at, problem: `padding byte is ${bytes[at]}, not 0` };
}

async function* checkStream(
  source: ByteSource,
  file: ModelFile,
  region: Region,
  crc32: Crc32,
): AsyncGenerator<Fault> {
  let sum = 0;
  for (const piece of streamPieces(region.stream!, file.dtype)) {
    const base = region.offset + piece.offset;
    if (piece.kind === 'plain') {
      for (let at = 0; at < piece.length; at += PIECE_BYTES) {
        sum = crc32(await source.read(base + at, Math.min(PIECE_BYTES, piece.length - at)), sum);
      }
      continue;
    }
    const bytes = await source.read(base, piece.length);
    sum = crc32(bytes, sum);
    const { tensor, stripe } = piece;
    const id = stripeId(stripe, file.layout.version);
    for (const fault of checkStripe(piece.dtype, bytes, stripe.rows, tensor.shape[1]!, id)) {
      yield { region: region.name, offset: base + fault.offset, problem: `${tensor.name}: ${fault.problem}` };
    }
  }
  yield* compare(file, region, sum);
}
