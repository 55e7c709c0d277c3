import { CflowError } from '../errors.js';
import { FIELD_BYTES, type Field, type FieldType, type Struct } from './schema.js';

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
  // No object without a prototype: those are hash tables, and there are thousands of rows.
  const out: Record<string, number> = {};
  for (const field of struct.fields) {
    if (field.type === 'magic') continue;
    const value = readField(view, field.type, offset + field.offset);
    if (value > Number.MAX_SAFE_INTEGER)
      tooLarge(view, struct, field, { file, at: offset + field.offset, base });
    out[field.name] = value;
  }
  return out;
}

function readField(view: DataView, type: FieldType, at: number): number {
  switch (type) {
    case 'u8':
      return view.getUint8(at);
    case 'u16':
      return view.getUint16(at, true);
    case 'u32':
      return view.getUint32(at, true);
    case 'f32':
      return view.getFloat32(at, true);
    default:
      // Exact up to 2^53, and above it whatever is above it; tables have thousands of them, so no BigInt.
      return view.getUint32(at, true) + 2 ** 32 * view.getUint32(at + 4, true);
  }
}

function tooLarge(
  view: DataView,
  struct: Struct,
  field: Field,
  { file, at, base }: { readonly file: string | undefined; readonly at: number; readonly base: number },
): void {
  // An f32 is no offset: infinity is for whoever reads it.
  if (field.type !== 'u64') return;
  const value = view.getBigUint64(at, true);
  throw new CflowError('LIMIT_EXCEEDED', `${value} is over the limit of ${Number.MAX_SAFE_INTEGER}`, {
    file,
    field: `${struct.name}.${field.name}`,
    offset: base + at,
  });
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
