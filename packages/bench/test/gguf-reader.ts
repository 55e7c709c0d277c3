/** A reader of GGUF v3, from its specification alone and for tests alone: it trusts the file. */

export interface GgufInfo {
  readonly name: string;
  /** Fastest first. */
  readonly dims: readonly number[];
  readonly type: number;
  readonly offset: number;
}

export interface GgufFile {
  readonly metadata: Record<string, unknown>;
  readonly tensors: readonly GgufInfo[];
  readonly dataStart: number;
}

export function readGguf(bytes: Buffer): GgufFile {
  let at = 0;
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
  if (bytes.toString('latin1', 0, 4) !== 'GGUF') throw new Error('not GGUF');
  at = 4;
  if (u32() !== 3) throw new Error('not version 3');
  const [tensorCount, valueCount] = [u64(), u64()];
  const metadata: Record<string, unknown> = {};
  for (let i = 0; i < valueCount; i++) {
    const key = string();
    metadata[key] = value(u32());
  }
  const tensors = Array.from({ length: tensorCount }, () => {
    const name = string();
    const dims = Array.from({ length: u32() }, u64);
    return { name, dims, type: u32(), offset: u64() };
  });
  return { metadata, tensors, dataStart: Math.ceil(at / 32) * 32 };
}

/** All values of a tensor of type F32 (0) or Q4_0 (2), in order. */
export function readGgufTensor(bytes: Buffer, name: string): Float32Array {
  const { tensors, dataStart } = readGguf(bytes);
  const { dims, type, offset } = tensors.find((tensor) => tensor.name === name)!;
  const values = new Float32Array(dims.reduce((product, n) => product * n, 1));
  const start = dataStart + offset;
  if (start % 32) throw new Error(`${name} is not aligned`);
  if (type === 0) return values.map((_, i) => bytes.readFloatLE(start + 4 * i));
  for (let block = 0; block < values.length / 32; block++) {
    const at = start + 18 * block;
    const scale = half(bytes.readUInt16LE(at));
    for (let j = 0; j < 16; j++) {
      const byte = bytes[at + 2 + j]!;
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
