/** A reader of GGUF v3 for tests alone, from its specification: it trusts the file and shares nothing with what it judges. */

export interface PlainTensor {
  /** Fastest first. */
  dims: number[];
  type: number;
  offset: number;
}
export interface PlainGguf {
  metadata: Record<string, unknown>;
  tensors: Record<string, PlainTensor>;
  dataStart: number;
}

/** Trusts the file. */
export function parseGguf(bytes: Buffer): PlainGguf {
  let at = 8;
  const take = (count: number) => {
    at += count;
    return at - count;
  };
  const u32 = () => bytes.readUInt32LE(take(4));
  const u64 = () => Number(bytes.readBigUInt64LE(take(8)));
  const string = () => {
    const length = u64();
    const start = take(length);
    return bytes.toString('utf8', start, start + length);
  };
  const value = (type: number): unknown => {
    if (type === 4) return u32();
    if (type === 5) return bytes.readInt32LE(take(4));
    if (type === 6) return bytes.readFloatLE(take(4));
    if (type === 7) return bytes[take(1)] === 1;
    if (type === 8) return string();
    if (type !== 9) throw new Error(`value type ${type} at ${at}`);
    const item = u32();
    return Array.from({ length: u64() }, () => value(item));
  };
  if (bytes.toString('latin1', 0, 4) !== 'GGUF' || bytes.readUInt32LE(4) !== 3) throw new Error('not GGUF 3');
  const [tensorCount, keyCount] = [u64(), u64()];
  const metadata: Record<string, unknown> = {};
  for (let i = 0; i < keyCount; i++) {
    const key = string();
    metadata[key] = value(u32());
  }
  const tensors: Record<string, PlainTensor> = {};
  for (let i = 0; i < tensorCount; i++) {
    const name = string();
    const dims = Array.from({ length: u32() }, u64);
    tensors[name] = { dims, type: u32(), offset: u64() };
  }
  return { metadata, tensors, dataStart: Math.ceil(at / 32) * 32 };
}

/** Bytes of a tensor: `each` bytes per row of the fastest dimension. */
export function tensorBytes(bytes: Buffer, name: string): Buffer {
  const { tensors, dataStart } = parseGguf(bytes);
  const { dims, type, offset } = tensors[name]!;
  const count = dims.reduce((product, n) => product * n, 1);
  const size = { 0: count * 4, 1: count * 2, 2: (count / 32) * 18, 8: (count / 32) * 34, 30: count * 2 }[
    type
  ]!;
  if (offset % 32) throw new Error(`${name} is not aligned`);
  return bytes.subarray(dataStart + offset, dataStart + offset + size);
}

/** Values of a tensor of type F32 (0) or Q4_0 (2), in order. */
export function tensorValues(bytes: Buffer, name: string): Float32Array {
  const { dims, type } = parseGguf(bytes).tensors[name]!;
  if (type !== 0 && type !== 2) throw new Error(`${name} has type ${type}`);
  const own = tensorBytes(bytes, name);
  const values = new Float32Array(dims.reduce((product, n) => product * n, 1));
  if (type === 0) return values.map((_, i) => own.readFloatLE(4 * i));
  for (let block = 0; block < values.length / 32; block++) {
    const scale = half(own.readUInt16LE(18 * block));
    for (let j = 0; j < 16; j++) {
      const byte = own[18 * block + 2 + j]!;
      values[32 * block + j] = scale * ((byte & 15) - 8);
      values[32 * block + j + 16] = scale * ((byte >> 4) - 8);
    }
  }
  return values;
}

/** Normal halves only: synthetic scales are. */
function half(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  return sign * 2 ** (((bits >> 10) & 31) - 15) * (1 + (bits & 1023) / 1024);
}
