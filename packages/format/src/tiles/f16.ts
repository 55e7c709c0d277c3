/** IEEE binary16. Node 20 has no Float16Array; these two functions are all that is needed of one. */

const bits = new Uint32Array(1);
const float = new Float32Array(bits.buffer);

/** Nearest binary16, ties to even; overflow becomes infinity. Returns the 16 bits. */
export function f32ToF16(value: number): number {
  float[0] = value;
  const b = bits[0]!;
  const sign = (b >>> 16) & 0x8000;
  const exponent = (b >>> 23) & 0xff;
  const mantissa = b & 0x7fffff;
  if (exponent === 0xff) return sign | 0x7c00 | (mantissa ? 0x200 : 0);
  const e = exponent - 112;
  if (e >= 31) return sign | 0x7c00;
  if (e <= 0) {
    if (e < -10) return sign;
    const full = mantissa | 0x800000;
    return sign | roundShift(full, 14 - e);
  }
  // A carry out of the mantissa runs into the exponent, which is just what rounding up to the next power of two needs.
  return sign | ((e << 10) + roundShift(mantissa, 13));
}

function roundShift(value: number, shift: number): number {
  const kept = value >>> shift;
  const rest = value & ((1 << shift) - 1);
  const half = 1 << (shift - 1);
  return rest > half || (rest === half && kept & 1) ? kept + 1 : kept;
}

/** The value of a binary16, given as bits. */
export function f16ToF32(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >>> 10) & 31;
  const mantissa = half & 0x3ff;
  if (exponent === 0) return sign * mantissa * 2 ** -24;
  if (exponent === 31) return mantissa ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (1024 + mantissa) * 2 ** (exponent - 25);
}
