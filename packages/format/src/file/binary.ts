import { CflowError } from '../errors.js';
import { FIELD_BYTES, type Field, type Struct } from './schema.js';

/**
 * Decodes `struct` at `offset` of `bytes`, which lie at `base` in the file; the caller has made sure that they are there.
 * @throws CflowError LIMIT_EXCEEDED for a u64 over 2^53 − 1
 */
export function readStruct(
  struct: Struct,
  bytes: Uint8Array,
  offset = 0,
  file?: string,
  base = 0,
): Record<string, number> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const out: Record<string, number> = Object.create(null);
  for (const field of struct.fields) {
    if (field.type !== 'magic')
      out[field.name] = readField(view, field, offset, {
        file,
        field: `${struct.name}.${field.name}`,
        offset: base,
      });
  }
  return out;
}

function readField(
  view: DataView,
  { type, offset }: Field,
  start: number,
  where: { file: string | undefined; field: string; offset: number },
): number {
  const at = start + offset;
  switch (type) {
    case 'u8':
      return view.getUint8(at);
    case 'u16':
      return view.getUint16(at, true);
    case 'u32':
      return view.getUint32(at, true);
    case 'f32':
      return view.getFloat32(at, true);
    default: {
      const value = view.getBigUint64(at, true);
      if (value <= BigInt(Number.MAX_SAFE_INTEGER)) return Number(value);
      throw new CflowError('LIMIT_EXCEEDED', `${value} is over the limit of ${Number.MAX_SAFE_INTEGER}`, {
        ...where,
        offset: where.offset + at,
      });
    }
  }
}

/** The eight magic bytes as a Latin-1 string. */
export function readMagic(bytes: Uint8Array): string {
  return String.fromCharCode(...bytes.subarray(0, 8));
}

/** Encodes `values` into `bytes` at `offset`. Every field must be given; a value that does not fit is a defect of the caller. */
export function writeStruct(
  struct: Struct,
  bytes: Uint8Array,
  offset: number,
  values: Readonly<Record<string, number | string>>,
): void {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (const field of struct.fields)
    writeField(view, field, offset + field.offset, values[field.name], struct.name);
}

function writeField(
  view: DataView,
  field: Field,
  at: number,
  value: number | string | undefined,
  name: string,
): void {
  const where = `${name}.${field.name}`;
  if (field.type === 'magic') {
    if (typeof value !== 'string') throw new Error(`${where} needs a string`);
    for (let i = 0; i < 8; i++) view.setUint8(at + i, value.charCodeAt(i));
    return;
  }
  if (typeof value !== 'number') throw new Error(`${where} is not given`);
  if (field.type === 'f32') {
    view.setFloat32(at, value, true);
    return;
  }
  const max = field.type === 'u64' ? Number.MAX_SAFE_INTEGER : 2 ** (8 * FIELD_BYTES[field.type]) - 1;
  if (!Number.isInteger(value) || value < 0 || value > max) {
    throw new CflowError('LIMIT_EXCEEDED', `${value} does not fit, the limit is ${max}`, { field: where });
  }
  if (field.type === 'u8') view.setUint8(at, value);
  else if (field.type === 'u16') view.setUint16(at, value, true);
  else if (field.type === 'u32') view.setUint32(at, value, true);
  else view.setBigUint64(at, BigInt(value), true);
}
