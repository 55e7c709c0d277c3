/** CRC-32 (IEEE 802.3, as in zlib and PNG). Continue a checksum by passing the previous value as `seed`. */
export type Crc32 = (bytes: Uint8Array, seed?: number) => number;

const SLICES = 8;
const tables = makeTables();

function makeTables(): Uint32Array[] {
  const all = Array.from({ length: SLICES }, () => new Uint32Array(256));
  for (let n = 0; n < 256; n++) {
    let c = n;
    for (let k = 0; k < 8; k++) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
    all[0]![n] = c;
  }
  for (let n = 0; n < 256; n++) {
    for (let t = 1; t < SLICES; t++) {
      const c = all[t - 1]![n]!;
      all[t]![n] = (c >>> 8) ^ all[0]![c & 255]!;
    }
  }
  return all;
}

/** Portable implementation, eight bytes a step. In Node, zlib.crc32 has the same contract and is faster. */
export function crc32(bytes: Uint8Array, seed = 0): number {
  const [t0, t1, t2, t3, t4, t5, t6, t7] = tables as [
    Uint32Array,
    Uint32Array,
    Uint32Array,
    Uint32Array,
    Uint32Array,
    Uint32Array,
    Uint32Array,
    Uint32Array,
  ];
  let c = ~seed;
  let i = 0;
  for (; i + 8 <= bytes.length; i += 8) {
    const lo = c ^ (bytes[i]! | (bytes[i + 1]! << 8) | (bytes[i + 2]! << 16) | (bytes[i + 3]! << 24));
    c =
      t7[lo & 255]! ^
      t6[(lo >>> 8) & 255]! ^
      t5[(lo >>> 16) & 255]! ^
      t4[lo >>> 24]! ^
      t3[bytes[i + 4]!]! ^
      t2[bytes[i + 5]!]! ^
      t1[bytes[i + 6]!]! ^
      t0[bytes[i + 7]!]!;
  }
  for (; i < bytes.length; i++) c = t0[(c ^ bytes[i]!) & 255]! ^ (c >>> 8);
  return ~c >>> 0;
}

/** A checksum as metadata has it: eight hexadecimal digits. */
export function crcHex(value: number): string {
  return value.toString(16).padStart(8, '0');
}
