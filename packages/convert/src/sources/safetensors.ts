/**
 * Strict, streaming reader of safetensors: the eight length bytes, then exactly the header, later only the rows asked
 * for. Every rule of the format is checked here, because what follows trusts offsets and shapes.
 */
import { type ByteSource, CflowError, invalid, readExactly } from '@cflow/format';
import { z } from 'zod';
import { MOST_HEADER_BYTES } from '../defaults.js';
import { parseJsonObject } from '../json.js';
import { refuseForeign } from './foreign.js';
import { DECODERS, SAFETENSORS_BITS, type SafetensorsDtype } from './safetensors-dtype.js';

/** The limit of the reference implementation, and the default here; real headers are a few MB at most. */
export const MAX_HEADER_BYTES = 100_000_000;
const LENGTH_BYTES = 8;
const REMEDY = 'the file is damaged; download it again';

/** A tensor as the header declares it. */
export interface SafetensorsEntry {
  readonly name: string;
  readonly dtype: SafetensorsDtype;
  readonly shape: readonly number[];
  /** First byte, from the start of the file. */
  readonly offset: number;
  readonly bytes: number;
}

/** The header of a safetensors file, read and checked. */
export interface SafetensorsHeader {
  /** Length of the JSON text. */
  readonly headerBytes: number;
  readonly metadata: Readonly<Record<string, string>>;
  /** By name, in the order of the data. */
  readonly tensors: ReadonlyMap<string, SafetensorsEntry>;
}

const safeCount = z.int().min(0);
const entrySchema = z.strictObject({
  dtype: z.string(),
  shape: z.array(safeCount),
  data_offsets: z.tuple([safeCount, safeCount]),
});
const metadataSchema = z.record(z.string(), z.string());

/**
 * Reads and checks the header of a safetensors file. Reads nothing else.
 * @throws CflowError FORMAT_INVALID (what the format forbids), LIMIT_EXCEEDED (header over 100 MB), UNSUPPORTED
 *   (unknown dtype)
 */
export async function readSafetensorsHeader(
  source: ByteSource,
  maxHeaderBytes = MAX_HEADER_BYTES,
): Promise<SafetensorsHeader> {
  const file = source.name;
  const first = await readFully(source, 0, LENGTH_BYTES, 'header length');
  // Text of another kind reads as an absurd length.
  if (first[LENGTH_BYTES - 1] !== 0) {
    refuseForeign(await source.read(0, Math.min(64, source.size)), file, 'safetensors');
  }
  const headerBytes = headerLength(first, source, maxHeaderBytes);
  const text = await readFully(source, LENGTH_BYTES, headerBytes, 'header');
  if (text[0] !== 0x7b)
    invalid('the header must begin with "{"', { file, offset: LENGTH_BYTES, remedy: REMEDY });
  const { __metadata__, ...rows } = parseJsonObject(text, { file, code: 'FORMAT_INVALID' });
  const dataStart = LENGTH_BYTES + headerBytes;
  const entries = Object.entries(rows).map(([name, row]) => parseEntry(name, row, dataStart, source));
  entries.sort((a, b) => a.offset - b.offset || a.bytes - b.bytes);
  checkCoverage(entries, dataStart, source);
  return {
    headerBytes,
    metadata: parseMetadata(__metadata__, file),
    tensors: new Map(entries.map((entry) => [entry.name, entry])),
  };
}

function headerLength(bytes: Uint8Array, source: ByteSource, limit: number): number {
  const at = { file: source.name, field: 'header length' };
  const length = new DataView(bytes.buffer, bytes.byteOffset, LENGTH_BYTES).getBigUint64(0, true);
  const space = Math.max(0, source.size - LENGTH_BYTES);
  if (length > BigInt(limit)) {
    const raised = length <= BigInt(Math.min(space, MOST_HEADER_BYTES));
    throw new CflowError('LIMIT_EXCEEDED', `header of ${length} bytes, at most ${limit}`, {
      ...at,
      value: length,
      limit,
      remedy: raised
        ? `if the file is sound, raise the limit with --max-header ${Math.ceil(Number(length) / 1e6)}`
        : 'is this a safetensors file?',
    });
  }
  if (length < 2n) invalid(`header of ${length} bytes, at least 2`, at);
  if (length > BigInt(space)) {
    const missing = Number(length) - space;
    invalid(`truncated: the header has ${length} bytes and ${missing} of them are missing`, {
      ...at,
      remedy: 'download it again',
    });
  }
  return Number(length);
}

/** The reads of a source may come back short (ranged HTTP does); what counts is what was really received. */
async function readFully(
  source: ByteSource,
  offset: number,
  length: number,
  field: string,
): Promise<Uint8Array> {
  let bytes = await readExactly(source, offset, length, field);
  while (bytes.length < length) {
    const rest = await source.read(offset + bytes.length, length - bytes.length);
    if (rest.length === 0) {
      invalid(`need ${length} bytes, received ${bytes.length}`, { file: source.name, field, offset });
    }
    bytes = concat(bytes, rest);
  }
  return bytes.length === length ? bytes : bytes.subarray(0, length);
}

function concat(a: Uint8Array, b: Uint8Array): Uint8Array {
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

function parseMetadata(value: unknown, file: string): Record<string, string> {
  const result = metadataSchema.safeParse(value ?? {});
  if (result.success) return result.data;
  const key = result.error.issues[0]?.path.join('.');
  return invalid(`${key ? `${JSON.stringify(key)} must be a string` : 'must be an object of strings'}`, {
    file,
    field: '__metadata__',
    remedy: REMEDY,
  });
}

function parseEntry(name: string, row: unknown, dataStart: number, source: ByteSource): SafetensorsEntry {
  const at = { file: source.name, field: name };
  const parsed = entrySchema.safeParse(row);
  if (!parsed.success) {
    const problems = parsed.error.issues
      .slice(0, 3)
      .map((i) => `${i.path.join('.') || 'entry'}: ${i.message}`);
    return invalid(`not a tensor entry: ${problems.join('; ')}`, { ...at, remedy: REMEDY });
  }
  const { dtype, shape, data_offsets } = parsed.data;
  const [begin, end] = data_offsets;
  const dataBytes = source.size - dataStart;
  if (!isDtype(dtype)) throw new CflowError('UNSUPPORTED', `unknown dtype ${JSON.stringify(dtype)}`, at);
  if (begin <= end && end > dataBytes) {
    invalid(`truncated: it ends at byte ${end} of the data, and ${end - dataBytes} of them are missing`, {
      ...at,
      remedy: 'download the file again',
    });
  }
  if (begin > end) {
    invalid(`data_offsets [${begin}, ${end}] are not within the ${dataBytes} bytes of data`, {
      ...at,
      remedy: REMEDY,
    });
  }
  const bits = tensorBits(shape, dtype);
  if (bits === undefined) invalid(`shape [${shape}] has more elements than can be counted`, at);
  if (bits !== (end - begin) * 8) {
    invalid(`shape [${shape}] of ${dtype} needs ${bits! / 8} bytes, data_offsets give ${end - begin}`, at);
  }
  return { name, dtype, shape, offset: dataStart + begin, bytes: end - begin };
}

function isDtype(name: string): name is SafetensorsDtype {
  return Object.hasOwn(SAFETENSORS_BITS, name);
}

/** Bits of a tensor, or undefined where a product is not exact. */
function tensorBits(shape: readonly number[], dtype: SafetensorsDtype): number | undefined {
  let product: number = SAFETENSORS_BITS[dtype];
  for (const n of shape) {
    product *= n;
    if (!Number.isSafeInteger(product)) return undefined;
  }
  return product;
}

/** Tensors follow each other without gap or overlap from the first data byte to the end of the file. */
function checkCoverage(sorted: readonly SafetensorsEntry[], dataStart: number, source: ByteSource): void {
  let next = dataStart;
  let last: SafetensorsEntry | undefined;
  const span = ({ offset, bytes }: SafetensorsEntry) =>
    `bytes ${offset - dataStart} to ${offset - dataStart + bytes}`;
  for (const entry of sorted) {
    const { name, offset, bytes } = entry;
    if (offset !== next) {
      const before = last ? `${JSON.stringify(last.name)} (${span(last)})` : 'the header';
      const kind =
        offset < next ? `overlaps ${before}` : `leaves a gap of ${offset - next} bytes behind ${before}`;
      invalid(`${span(entry)}, ${kind}`, { file: source.name, field: name, offset, remedy: REMEDY });
    }
    next = offset + bytes;
    last = entry;
  }
  if (next !== source.size) {
    invalid(`${source.size - next} bytes after the last tensor`, {
      file: source.name,
      offset: next,
      remedy: REMEDY,
    });
  }
}

/** Where the bytes of some rows lie. */
export interface RowRange {
  readonly dtype: SafetensorsDtype;
  /** First byte, from the start of the file. */
  readonly offset: number;
  readonly bytes: number;
}

/**
 * The bytes of slices [rowStart, rowStart + rows) along the first dimension: for [out, in] these are rows of `in` values,
 * for a vector [n] single elements.
 * @throws CflowError UNSUPPORTED for a dtype that weights cannot have
 */
export function tensorRowRange(
  { name }: Pick<ByteSource, 'name'>,
  entry: SafetensorsEntry,
  rowStart: number,
  rows: number,
): RowRange {
  const at = { file: name, field: entry.name };
  const [count = 1, ...rest] = entry.shape;
  if (rowStart < 0 || rows < 0 || rowStart + rows > count) {
    throw new CflowError('INTERNAL', `rows ${rowStart}..${rowStart + rows} of ${count}`, at);
  }
  const perRow = rest.reduce((product, n) => product * n, 1);
  if (!DECODERS[entry.dtype]) {
    throw new CflowError('UNSUPPORTED', `${count * perRow} values of dtype ${entry.dtype}`, {
      ...at,
      value: entry.dtype,
      limit: Object.keys(DECODERS),
      remedy: `convert a checkpoint of ${Object.keys(DECODERS).join(', ')}`,
    });
  }
  const rowBytes = (perRow * SAFETENSORS_BITS[entry.dtype]) / 8;
  return { dtype: entry.dtype, offset: entry.offset + rowStart * rowBytes, bytes: rows * rowBytes };
}

/**
 * Slices [rowStart, rowStart + rows) along the first dimension, as f32. One contiguous read. F32, F16 and BF16 are exact
 * to the bit, F64 is rounded.
 * @returns rows × (elements of one slice) values, row-major
 * @throws CflowError UNSUPPORTED for any other dtype
 */
export async function tensorRowsF32(
  source: ByteSource,
  entry: SafetensorsEntry,
  rowStart: number,
  rows: number,
): Promise<Float32Array> {
  const { dtype, offset, bytes } = tensorRowRange(source, entry, rowStart, rows);
  return DECODERS[dtype]!(await readFully(source, offset, bytes, entry.name));
}
