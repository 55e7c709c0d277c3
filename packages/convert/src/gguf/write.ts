/** The head of a GGUF file: magic, counts, metadata, and where each tensor lies. */
import {
  GGUF_MAGIC,
  GGUF_VERSION,
  type GgufEntry,
  type GgufScalar,
  type ScalarType,
  VALUE_TYPES,
} from './schema.js';

/** What the head says of a tensor. */
export interface TensorRow {
  readonly name: string;
  /** Dimensions, fastest first. */
  readonly dims: readonly number[];
  readonly typeId: number;
  /** From the start of the data. */
  readonly offset: number;
}

/** The head, with zeros up to the alignment: its length is where the data begin. */
export function encodeGgufHead(
  entries: readonly GgufEntry[],
  tensors: readonly TensorRow[],
  alignment: number,
): Uint8Array {
  const out = new ByteList();
  out.raw(Buffer.from(GGUF_MAGIC));
  out.scalar('u32', GGUF_VERSION);
  out.scalar('u64', tensors.length);
  out.scalar('u64', entries.length);
  for (const entry of entries) writeEntry(out, entry);
  for (const { name, dims, typeId, offset } of tensors) {
    out.scalar('string', name);
    out.scalar('u32', dims.length);
    for (const dim of dims) out.scalar('u64', dim);
    out.scalar('u32', typeId);
    out.scalar('u64', offset);
  }
  return out.padded(alignment);
}

function writeEntry(out: ByteList, [key, type, value, item]: GgufEntry): void {
  out.scalar('string', key);
  out.scalar('u32', VALUE_TYPES[type].id);
  if (type !== 'array') {
    out.scalar(type, value);
    return;
  }
  out.scalar('u32', VALUE_TYPES[item].id);
  out.scalar('u64', value.length);
  for (const each of value) out.scalar(item, each);
}

type Setter = (view: DataView, value: number) => void;

const NUMBERS: Readonly<Record<Exclude<ScalarType, 'string'>, Setter>> = {
  u8: (view, value) => view.setUint8(0, value),
  i8: (view, value) => view.setInt8(0, value),
  u16: (view, value) => view.setUint16(0, value, true),
  i16: (view, value) => view.setInt16(0, value, true),
  u32: (view, value) => view.setUint32(0, value, true),
  i32: (view, value) => view.setInt32(0, value, true),
  f32: (view, value) => view.setFloat32(0, value, true),
  f64: (view, value) => view.setFloat64(0, value, true),
  bool: (view, value) => view.setUint8(0, value),
  u64: (view, value) => view.setBigUint64(0, BigInt(value), true),
  i64: (view, value) => view.setBigInt64(0, BigInt(value), true),
};

/** Little-endian bytes that grow. */
class ByteList {
  readonly #pieces: Uint8Array[] = [];

  raw(bytes: Uint8Array): void {
    this.#pieces.push(bytes);
  }

  scalar(type: ScalarType, value: GgufScalar): void {
    if (type === 'string') {
      const bytes = Buffer.from(String(value));
      this.scalar('u64', bytes.length);
      this.raw(bytes);
      return;
    }
    const bytes = new Uint8Array(VALUE_TYPES[type].bytes);
    NUMBERS[type](new DataView(bytes.buffer), Number(value));
    this.raw(bytes);
  }

  padded(alignment: number): Uint8Array {
    const all = Buffer.concat(this.#pieces);
    return Buffer.concat([all, Buffer.alloc(Math.ceil(all.length / alignment) * alignment - all.length)]);
  }
}
