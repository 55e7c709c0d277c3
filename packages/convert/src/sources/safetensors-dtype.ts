/** Dtypes of safetensors and how their little-endian bytes become f32. */

/** Bits of one element. */
export const SAFETENSORS_BITS = {
  F64: 64,
  F32: 32,
  F16: 16,
  BF16: 16,
  I64: 64,
  U64: 64,
  C64: 64,
  I32: 32,
  U32: 32,
  I16: 16,
  U16: 16,
  I8: 8,
  U8: 8,
  BOOL: 8,
  F8_E5M2: 8,
  F8_E4M3: 8,
  F8_E8M0: 8,
  F8_E4M3FNUZ: 8,
  F8_E5M2FNUZ: 8,
  F6_E3M2: 6,
  F6_E2M3: 6,
  F4: 4,
} as const;
export type SafetensorsDtype = keyof typeof SAFETENSORS_BITS;

type Decoder = (bytes: Uint8Array) => Float32Array;

/** The dtypes that weights can have; a new one is a row here. */
export const DECODERS: Partial<Record<SafetensorsDtype, Decoder>> = {
  F32: (bytes) => new Float32Array(owned(bytes)),
  F16: (bytes) => widen(bytes, (half) => halfTable()[half]!),
  BF16: (bytes) => widen(bytes, (half) => half << 16),
  F64: (bytes) => new Float32Array(new Float64Array(owned(bytes))),
  F8_E4M3: (bytes) => Float32Array.from(bytes, (byte) => e4m3Table()[byte]!),
  // The upper half of an f16.
  F8_E5M2: (bytes) =>
    widen(
      Uint8Array.from({ length: 2 * bytes.length }, (_, i) => (i % 2 ? bytes[i >> 1]! : 0)),
      (half) => halfTable()[half]!,
    ),
};

/** A copy at offset 0 of its own buffer: typed arrays need alignment, and callers may overwrite what they get. */
function owned(bytes: Uint8Array): ArrayBuffer {
  return new Uint8Array(bytes).buffer;
}

/** Works on bit patterns, since JavaScript numbers would not keep the payload of a NaN. */
function widen(bytes: Uint8Array, bits: (half: number) => number): Float32Array {
  const halves = new Uint16Array(owned(bytes));
  const words = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; i++) words[i] = bits(halves[i]!);
  return new Float32Array(words.buffer);
}

let e4m3: Float32Array | undefined;

/** Values of every byte: sign, four bits of exponent with bias 7, three of mantissa; no infinities, 0x7f is NaN. */
function e4m3Table(): Float32Array {
  e4m3 ??= Float32Array.from({ length: 256 }, (_, byte) => {
    const sign = byte & 0x80 ? -1 : 1;
    const exponent = (byte >> 3) & 15;
    const mantissa = byte & 7;
    if (exponent === 15 && mantissa === 7) return Number.NaN;
    return sign * (exponent ? 2 ** (exponent - 7) * (1 + mantissa / 8) : 2 ** -6 * (mantissa / 8));
  });
  return e4m3;
}

let table: Uint32Array | undefined;

/** f32 bits of every f16; 256 KiB once instead of branches for each weight. */
function halfTable(): Uint32Array {
  table ??= Uint32Array.from({ length: 65_536 }, (_, half) => halfBits(half));
  return table;
}

/** IEEE binary16 → binary32 bits: exponent bias 15 → 127, ten mantissa bits → 23. */
function halfBits(half: number): number {
  const sign = (half & 0x8000) << 16;
  const exponent = (half >> 10) & 0x1f;
  const mantissa = half & 0x3ff;
  if (exponent === 0x1f) return sign | 0x7f800000 | (mantissa << 13);
  if (exponent !== 0) return sign | ((exponent + 112) << 23) | (mantissa << 13);
  if (mantissa === 0) return sign;
  const shift = Math.clz32(mantissa) - 21;
  return sign | ((113 - shift) << 23) | (((mantissa << shift) & 0x3ff) << 13);
}
