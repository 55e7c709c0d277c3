/** Opening a GGUF file: every count, length and offset of the head is checked before anything is made of it. */

import { type ByteSource, CflowError, type ErrorDetails, invalid, readExactly } from '@cflow/format';
import { refuseForeign } from '../sources/foreign.js';
import {
  GGUF_ALIGNMENT,
  GGUF_MAGIC,
  GGUF_READABLE,
  type GgufScalar,
  type GgufValue,
  MAX_ALIGNMENT,
  MAX_ARRAY_ITEMS,
  MAX_DIMS,
  MAX_HEAD_BYTES,
  MAX_KEYS,
  MAX_NAME_BYTES,
  MAX_TENSORS,
  REFUSED_TENSOR_TYPES,
  type ScalarType,
  TENSOR_TYPE_NAMES,
  TENSOR_TYPES,
  type TensorTypeName,
  VALUE_TYPES,
  type ValueType,
} from './schema.js';

/** A tensor as a GGUF declares it. */
export interface GgufTensorInfo {
  readonly name: string;
  /** Dimensions, fastest first: the reverse of a shape in PyTorch. */
  readonly dims: readonly number[];
  readonly type: TensorTypeName;
  /** From the start of the file. */
  readonly offset: number;
  readonly bytes: number;
}

/** The head of a GGUF, read and checked. */
export interface GgufFile {
  readonly source: ByteSource;
  readonly metadata: ReadonlyMap<string, GgufValue>;
  readonly tensors: ReadonlyMap<string, GgufTensorInfo>;
}

/**
 * Reads and checks the head; no weights.
 * @throws CflowError FORMAT_INVALID, VERSION_UNSUPPORTED, LIMIT_EXCEEDED, UNSUPPORTED (tensor types, by name and with
 *   counts), NOT_READABLE
 */
export async function readGguf(source: ByteSource): Promise<GgufFile> {
  refuseForeign(await source.read(0, Math.min(64, source.size)), source.name, 'gguf');
  const head = new HeadReader(source);
  await checkVersion(head);
  const tensorCount = await head.count('tensor_count', MAX_TENSORS, 24);
  const keyCount = await head.count('metadata_kv_count', MAX_KEYS, 13);
  const metadata = await readMetadata(head, keyCount);
  const rows = await readRows(head, tensorCount);
  refuseTypes(rows, source.name);
  const alignment = alignmentOf(metadata, source.name);
  const dataStart = Math.ceil(head.offset / alignment) * alignment;
  const tensors = rows.map((row) => placed(row, dataStart, alignment, source));
  refuseOverlaps(tensors, source.name);
  const named = byName(tensors, source.name);
  refuseTrailing(tensors, dataStart, alignment, source);
  return { source, metadata, tensors: named };
}

async function checkVersion(head: HeadReader): Promise<void> {
  const file = head.file;
  const magic = Buffer.from(await head.take(4, 'magic')).toString('latin1');
  if (magic !== GGUF_MAGIC) invalid('not a GGUF file', { file, field: 'magic', offset: 0 });
  const version = (await head.scalar('u32', 'version')) as number;
  if (GGUF_READABLE.includes(version)) return;
  const bigEndian = (version & 0xffff) === 0 && version !== 0;
  throw new CflowError(
    'VERSION_UNSUPPORTED',
    bigEndian ? 'a big-endian GGUF' : `GGUF version ${version}, known are ${GGUF_READABLE.join(' and ')}`,
    { file, field: 'version', value: version, remedy: 'convert the checkpoint with a current llama.cpp' },
  );
}

async function readMetadata(head: HeadReader, count: number): Promise<Map<string, GgufValue>> {
  const metadata = new Map<string, GgufValue>();
  for (let i = 0; i < count; i++) {
    const at = { file: head.file, field: `metadata[${i}]`, offset: head.offset };
    const key = await head.string(at.field, MAX_NAME_BYTES);
    if (metadata.has(key)) invalid(`duplicate key ${JSON.stringify(key.slice(0, 80))}`, at);
    const type = await head.type(key);
    metadata.set(key, type === 'array' ? await readArray(head, key) : await head.scalar(type, key));
  }
  return metadata;
}

async function readArray(head: HeadReader, key: string): Promise<GgufScalar[]> {
  const item = await head.type(key);
  if (item === 'array') invalid('an array of arrays', { file: head.file, field: key, offset: head.offset });
  const count = await head.count(key, MAX_ARRAY_ITEMS, VALUE_TYPES[item].bytes);
  const values: GgufScalar[] = [];
  for (let i = 0; i < count; i++) values.push(head.scalarNow(item, key) ?? (await head.scalar(item, key)));
  return values;
}

interface Row {
  readonly name: string;
  readonly dims: readonly number[];
  readonly typeId: number;
  readonly offset: number;
}

async function readRows(head: HeadReader, count: number): Promise<Row[]> {
  const rows: Row[] = [];
  for (let i = 0; i < count; i++) {
    const at = { file: head.file, field: `tensors[${i}]`, offset: head.offset };
    const name = await head.string(at.field, MAX_NAME_BYTES);
    const rank = (await head.scalar('u32', name)) as number;
    if (rank < 1 || rank > MAX_DIMS)
      invalid(`${rank} dimensions, 1 to ${MAX_DIMS} are possible`, { ...at, field: name });
    const dims: number[] = [];
    for (let d = 0; d < rank; d++) dims.push((await head.scalar('u64', name)) as number);
    rows.push({
      name,
      dims,
      typeId: (await head.scalar('u32', name)) as number,
      offset: (await head.scalar('u64', name)) as number,
    });
  }
  return rows;
}

function typeNamed(id: number): TensorTypeName | undefined {
  return TENSOR_TYPE_NAMES.find((name) => TENSOR_TYPES[name].id === id);
}

/** One error for all of them: `Q4_K (120), Q6_K (21)`. */
function refuseTypes(rows: readonly Row[], file: string): void {
  const refused = new Map<string, number>();
  for (const { typeId } of rows) {
    if (typeNamed(typeId)) continue;
    const name = REFUSED_TENSOR_TYPES[typeId] ?? `type ${typeId}`;
    refused.set(name, (refused.get(name) ?? 0) + 1);
  }
  if (refused.size === 0) return;
  const listed = [...refused].map(([name, count]) => `${name} (${count})`).join(', ');
  throw new CflowError('UNSUPPORTED', `tensors of types that are not read: ${listed}`, {
    file,
    field: 'tensors',
    value: [...refused.keys()],
    limit: TENSOR_TYPE_NAMES,
    remedy: `${TENSOR_TYPE_NAMES.join(', ')} are read: quantize from F16 with "llama-quantize --pure model.gguf out.gguf Q4_0"`,
  });
}

function alignmentOf(metadata: ReadonlyMap<string, GgufValue>, file: string): number {
  const alignment = metadata.get('general.alignment') ?? GGUF_ALIGNMENT;
  const legal =
    typeof alignment === 'number' &&
    alignment >= 8 &&
    alignment <= MAX_ALIGNMENT &&
    Number.isInteger(Math.log2(alignment));
  if (legal) return alignment;
  return invalid(`${String(alignment)}, a power of two from 8 to ${MAX_ALIGNMENT} is needed`, {
    file,
    field: 'general.alignment',
  });
}

/** Shape, size and place of a tensor, checked in forms that cannot overflow. */
function placed(row: Row, dataStart: number, alignment: number, source: ByteSource): GgufTensorInfo {
  const { name, dims, offset } = row;
  const at: ErrorDetails = { file: source.name, field: name };
  const type = typeNamed(row.typeId)!;
  const { group, bytes: blockBytes } = TENSOR_TYPES[type];
  const space = source.size - dataStart;
  let blocks = 1;
  for (const [index, dim] of dims.entries()) {
    const units = index === 0 ? dim / group : dim;
    if (units < 1 || !Number.isInteger(units)) {
      invalid(`dimensions [${dims}] are no whole blocks of ${type} (${group} weights)`, at);
    }
    blocks *= units;
    if (blocks > space)
      invalid(`dimensions [${dims}] do not fit into ${Math.max(0, space)} bytes of data`, at);
  }
  const bytes = blocks * blockBytes;
  if (offset % alignment) invalid(`starts at ${offset}, not a multiple of ${alignment}`, at);
  if (offset > space || bytes > space - offset) {
    invalid(`needs ${bytes} bytes from ${offset} of the data, which have ${Math.max(0, space)}`, {
      ...at,
      remedy: 'the file is truncated; download it again',
    });
  }
  return { name, dims, type, offset: dataStart + offset, bytes };
}

function refuseOverlaps(tensors: readonly GgufTensorInfo[], file: string): void {
  let last: GgufTensorInfo | undefined;
  for (const tensor of [...tensors].sort((a, b) => a.offset - b.offset)) {
    if (last && tensor.offset < last.offset + last.bytes) {
      invalid(`overlaps ${last.name}`, { file, field: tensor.name, offset: tensor.offset });
    }
    last = tensor;
  }
}

/** The last tensor may be padded to the alignment; nothing comes behind that. */
function refuseTrailing(
  tensors: readonly GgufTensorInfo[],
  dataStart: number,
  alignment: number,
  { name: file, size }: ByteSource,
): void {
  const end = tensors.reduce((most, { offset, bytes }) => Math.max(most, offset + bytes), dataStart);
  const padded = dataStart + Math.ceil((end - dataStart) / alignment) * alignment;
  if (tensors.length === 0 || size <= end || size === padded) return;
  const last = tensors.find(({ offset, bytes }) => offset + bytes === end)!;
  const surplus = size - (size > padded ? padded : end);
  const bytes = surplus === 1 ? '1 byte' : `${surplus} bytes`;
  invalid(`${bytes} after the last tensor, ${last.name}`, {
    file,
    offset: size - surplus,
    remedy: 'download the file again',
  });
}

function byName(tensors: readonly GgufTensorInfo[], file: string): Map<string, GgufTensorInfo> {
  const map = new Map<string, GgufTensorInfo>();
  for (const tensor of tensors) {
    if (map.has(tensor.name)) invalid('occurs twice', { file, field: tensor.name });
    map.set(tensor.name, tensor);
  }
  return map;
}

type Getter = (view: DataView, at: number) => number | bigint | boolean;

const NUMBERS: Readonly<Record<Exclude<ScalarType, 'string'>, Getter>> = {
  u8: (v, at) => v.getUint8(at),
  i8: (v, at) => v.getInt8(at),
  u16: (v, at) => v.getUint16(at, true),
  i16: (v, at) => v.getInt16(at, true),
  u32: (v, at) => v.getUint32(at, true),
  i32: (v, at) => v.getInt32(at, true),
  f32: (v, at) => v.getFloat32(at, true),
  f64: (v, at) => v.getFloat64(at, true),
  bool: (v, at) => v.getUint8(at) !== 0,
  u64: (v, at) => v.getBigUint64(at, true),
  i64: (v, at) => v.getBigInt64(at, true),
};

const TYPE_BY_ID = new Map(
  (Object.keys(VALUE_TYPES) as ValueType[]).map((name) => [VALUE_TYPES[name].id as number, name]),
);
const WINDOW_BYTES = 1024 * 1024;
const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Reads forward through a window; nothing is allocated that the file is too short for. */
class HeadReader {
  readonly #source: ByteSource;
  #window: Uint8Array = new Uint8Array(0);
  #view = new DataView(this.#window.buffer);
  /** Of the window in the file, and of the next byte in the window. */
  #base = 0;
  #at = 0;

  constructor(source: ByteSource) {
    this.#source = source;
  }

  get file(): string {
    return this.#source.name;
  }

  /** Of the next byte in the file. */
  get offset(): number {
    return this.#base + this.#at;
  }

  /** The next bytes; they are the caller's until its next call. */
  async take(length: number, field: string): Promise<Uint8Array> {
    if (this.#window.length - this.#at < length) await this.#fill(length, field);
    this.#at += length;
    return this.#window.subarray(this.#at - length, this.#at);
  }

  async #fill(length: number, field: string): Promise<void> {
    const { offset } = this;
    const at = { file: this.file, field, offset };
    if (offset + length > MAX_HEAD_BYTES) {
      throw new CflowError('LIMIT_EXCEEDED', `the head has over ${MAX_HEAD_BYTES} bytes`, at);
    }
    const wanted = Math.max(length, Math.min(WINDOW_BYTES, this.#source.size - offset));
    this.#window = await readExactly(this.#source, offset, wanted, field);
    this.#view = new DataView(this.#window.buffer, this.#window.byteOffset, this.#window.byteLength);
    this.#base = offset;
    this.#at = 0;
  }

  /** A count of things of at least `bytesEach`, which the rest of the file must be able to hold. */
  async count(field: string, limit: number, bytesEach: number): Promise<number> {
    const at = { file: this.file, field, offset: this.offset };
    const count = (await this.scalar('u64', field)) as number;
    if (count > limit) {
      throw new CflowError('LIMIT_EXCEEDED', `${count}, the limit is ${limit}`, {
        ...at,
        value: count,
        limit,
      });
    }
    const left = this.#source.size - this.offset;
    if (count * bytesEach > left) invalid(`${count} do not fit into the ${left} bytes left`, at);
    return count;
  }

  async type(field: string): Promise<ValueType> {
    const at = { file: this.file, field, offset: this.offset };
    const id = (await this.scalar('u32', field)) as number;
    return TYPE_BY_ID.get(id) ?? invalid(`${id} is no type of a value`, at);
  }

  async string(field: string, limit = MAX_HEAD_BYTES): Promise<string> {
    const length = await this.count(field, limit, 1);
    return this.#text(await this.take(length, field), field);
  }

  async scalar(type: ScalarType, field: string): Promise<GgufScalar> {
    if (type === 'string') return this.string(field);
    await this.take(VALUE_TYPES[type].bytes, field);
    return this.#number(type, this.#at - VALUE_TYPES[type].bytes, field);
  }

  /** As `scalar`, if the window has it all: long arrays must not wait for every item. */
  scalarNow(type: ScalarType, field: string): GgufScalar | undefined {
    const start = this.#at;
    const left = this.#window.length - start;
    if (left < VALUE_TYPES[type].bytes) return undefined;
    if (type !== 'string') {
      this.#at += VALUE_TYPES[type].bytes;
      return this.#number(type, start, field);
    }
    const length = Number(this.#view.getBigUint64(start, true));
    if (length > left - 8) return undefined;
    this.#at += 8 + length;
    return this.#text(this.#window.subarray(start + 8, this.#at), field);
  }

  #number(type: Exclude<ScalarType, 'string'>, at: number, field: string): number | boolean {
    const value = NUMBERS[type](this.#view, at);
    if (typeof value !== 'bigint') return value;
    if (BigInt(Number(value)) === value && Number.isSafeInteger(Number(value))) return Number(value);
    throw new CflowError('LIMIT_EXCEEDED', `${value} is over the limit of ${Number.MAX_SAFE_INTEGER}`, {
      file: this.file,
      field,
      offset: this.#base + at,
    });
  }

  #text(bytes: Uint8Array, field: string): string {
    try {
      return UTF8.decode(bytes);
    } catch (cause) {
      return invalid('not valid UTF-8', {
        file: this.file,
        field,
        offset: this.offset - bytes.length,
        cause,
      });
    }
  }
}
