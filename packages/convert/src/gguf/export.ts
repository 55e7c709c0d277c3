/** .cflow or .vflow → GGUF: the source is read once, forward; every stripe goes to its place in the output. */
import {
  type ByteSink,
  type ByteSource,
  type Crc32,
  dequantizeStripe,
  elements,
  littleEndianF32,
  type ModelFile,
  type Region,
  readExactly,
  requireChecksum,
  requireStripe,
  type Stream,
  type Stripe,
  streamPieces,
  stripeId,
  type TensorSpec,
} from '@cflow/format';
import { rowBytes, stripeToBlocks } from './blocks.js';
import { type GgufPlan, type GgufTensorPlan, planGguf } from './plan.js';
import { ggufRow } from './rope.js';
import { exportTokenizer } from './tokenizer-export.js';

/** Plans the GGUF file of an opened model, tokenizer included. */
export function planExport(file: ModelFile, name: string): GgufPlan {
  const { config, dtype, metadata } = file;
  const tokenizer = exportTokenizer(metadata.tokenizer, config);
  const plan = planGguf(config, dtype, tokenizer.entries, name);
  return { ...plan, notes: [...plan.notes, ...tokenizer.notes] };
}

/** How a GGUF is written. */
export interface ExportOptions {
  readonly crc32: Crc32;
  /** Bytes of the source done since the last call; may throw to stop. */
  readonly onProgress?: (bytes: number) => void;
}

/** Where one of our tensors lies in the output. */
interface Place {
  readonly tensor: GgufTensorPlan;
  /** Of its first row. */
  readonly offset: number;
}

/**
 * Writes the planned file. Memory: one stripe.
 * @throws CflowError VERIFY_FAILED for a damaged source, FORMAT_INVALID for wrong tile headers
 */
export async function exportGguf(
  source: ByteSource,
  file: ModelFile,
  plan: GgufPlan,
  sink: ByteSink,
  options: ExportOptions,
): Promise<void> {
  await sink.write(0, plan.head);
  const places = await writeFixed(plan, sink);
  for (const region of file.layout.regions) {
    if (region.stream)
      await exportStream({ source, file, sink, places, options }, { ...region, stream: region.stream });
    options.onProgress?.(region.length);
  }
}

/** Writes what the plan made and the padding behind every tensor; returns where the rest goes. */
async function writeFixed(
  { head, tensors, fileBytes }: GgufPlan,
  sink: ByteSink,
): Promise<Map<string, Place>> {
  const places = new Map<string, Place>();
  for (const [index, tensor] of tensors.entries()) {
    const start = head.length + tensor.offset;
    if (tensor.values) await sink.write(start, new Uint8Array(tensor.values.buffer));
    for (const [part, spec] of tensor.parts.entries()) {
      places.set(spec.name, { tensor, offset: start + (part * tensor.bytes) / tensor.parts.length });
    }
    const next = tensors[index + 1];
    const end = next ? head.length + next.offset : fileBytes;
    const padding = end - start - tensor.bytes;
    if (padding > 0) await sink.write(start + tensor.bytes, new Uint8Array(padding));
  }
  return places;
}

interface Job {
  readonly source: ByteSource;
  readonly file: ModelFile;
  readonly sink: ByteSink;
  readonly places: ReadonlyMap<string, Place>;
  readonly options: ExportOptions;
}

async function exportStream(job: Job, region: Region & { readonly stream: Stream }): Promise<void> {
  const { source, file, places, options } = job;
  let sum = 0;
  for (const piece of streamPieces(region.stream, file.dtype)) {
    const bytes = await readExactly(source, region.offset + piece.offset, piece.length, region.name);
    sum = options.crc32(bytes, sum);
    const place = places.get(piece.tensor.name)!;
    if (piece.kind === 'plain') await exportPlain(job, piece.tensor, place, bytes);
    else await exportStripe(job, piece.stripe, place, { bytes, at: region.offset + piece.offset });
  }
  requireChecksum(source, file, region, sum);
}

async function exportPlain(
  { sink }: Job,
  spec: TensorSpec,
  { tensor, offset }: Place,
  bytes: Uint8Array,
): Promise<void> {
  const rows = spec.shape[0]!;
  const stride = (4 * elements(spec.shape)) / rows;
  await writeRows(sink, tensor, offset, { bytes, first: 0, rows, stride });
}

async function exportStripe(
  { source, file, sink }: Job,
  stripe: Stripe,
  { tensor, offset }: Place,
  { bytes, at }: { bytes: Uint8Array; at: number },
): Promise<void> {
  const { rows, rowOffset } = stripe;
  const cols = stripe.tensor.shape[1]!;
  requireStripe(file.dtype, bytes, rows, cols, stripeId(stripe, file.layout.version), source.name, at);
  const blocks =
    tensor.dtype === file.dtype
      ? stripeToBlocks(file.dtype, bytes, rows, cols)
      : littleEndianF32(dequantizeStripe(file.dtype, bytes, rows, cols));
  await writeRows(sink, tensor, offset, {
    bytes: blocks,
    first: rowOffset,
    rows,
    stride: rowBytes(tensor.dtype, cols),
  });
}

interface Rows {
  readonly bytes: Uint8Array;
  /** Index of the first in its tensor. */
  readonly first: number;
  readonly rows: number;
  /** Bytes of each. */
  readonly stride: number;
}

/** Neighbours in the output are written together: one write, or one for each run of rows that leave the stripe. */
async function writeRows(
  sink: ByteSink,
  { heads }: GgufTensorPlan,
  offset: number,
  run: Rows,
): Promise<void> {
  const { bytes, first, rows, stride } = run;
  if (!heads) return sink.write(offset + first * stride, bytes);
  const placed = Array.from({ length: rows }, (_, row) => ({ row, at: ggufRow(heads, first + row) }));
  placed.sort((a, b) => a.at - b.at);
  const sorted = new Uint8Array(bytes.length);
  for (const [index, { row }] of placed.entries()) {
    sorted.set(bytes.subarray(row * stride, (row + 1) * stride), index * stride);
  }
  for (let from = 0; from < rows; ) {
    let to = from + 1;
    while (to < rows && placed[to]!.at === placed[to - 1]!.at + 1) to++;
    await sink.write(offset + placed[from]!.at * stride, sorted.subarray(from * stride, to * stride));
    from = to;
  }
}
