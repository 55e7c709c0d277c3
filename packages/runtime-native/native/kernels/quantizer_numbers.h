// f16 and rounding of the quantizers, lane by lane.
// A part of quantizer.h, which includes it inside its namespace.

// --- f16. ----------------------------------------------------------------------------------------------------------

/// The 16 bits of each lane; nearest, ties to even. NaN becomes the quiet NaN.
CFLOW_INLINE Ints half_bits(Floats x) {
  const Ints bits = reinterpret_cast<Ints>(x);
  const Ints magnitude = bits & 0x7fffffff;
  const Ints rounded = (magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // 0.5 has the step of the f16 subnormals, so that the addition rounds to it.
  const Ints small = reinterpret_cast<Ints>(reinterpret_cast<Floats>(magnitude) + 0.5f) - 0x3f000000;
  Ints half = magnitude < 0x38800000 ? small : rounded;
  half = magnitude >= 0x477ff000 ? all(0x7c00) : half;
  half = magnitude > 0x7f800000 ? all(0x7e00) : half;
  return half | ((bits >> 16) & 0x8000);
}

CFLOW_INLINE Floats half_value(Ints half) {
  const Ints exponent = half & 0x7c00;
  const Ints shifted = (half & 0x7fff) << 13;
  const Ints normal = shifted + (112 << 23);
  const Ints small = reinterpret_cast<Ints>(to_floats(half & 0x3ff) * 0x1p-24f);
  Ints bits = exponent == 0 ? small : normal;
  bits = exponent == 0x7c00 ? shifted + (224 << 23) : bits;
  return reinterpret_cast<Floats>(bits | ((half & 0x8000) << 16));
}

// --- Rounding. -----------------------------------------------------------------------------------------------------

/// The nearest integer, ties to even, below 2^22.
CFLOW_INLINE Floats nearest(Floats x) {
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)
  return __builtin_ia32_rndscaleps_mask(x, 8, x, -1, 4);
#elif defined(__GNUC__) && !defined(__clang__) && defined(__AVX__)
  return __builtin_ia32_roundps256(x, 8);
#else
  // Adding 1.5 * 2^23 leaves no bit for a fraction.
  return (x + 0x1.8p23f) - 0x1.8p23f;
#endif
}

CFLOW_INLINE Ints nearest_int(Floats x) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX__)
  return (Ints)_mm256_cvtps_epi32((__m256)x);
#else
  return to_ints(nearest(x));
#endif
}

/// The nearest integers, below 2^15.
CFLOW_INLINE Shorts nearest_pair(Floats first, Floats second) {
  return reinterpret_cast<Shorts>((nearest_int(first) & 0xffff) | (nearest_int(second) << 16));
}

/// The weight of largest magnitude in each lane, the negative one of two.
CFLOW_INLINE Floats signed_peak(const Floats (&w)[kGroup]) {
  // Bits of positive numbers are ordered as they are, and those of negative ones by magnitude above all positive.
  Ints positive = {};
  Words negative = {};
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; i++) {
    positive = max(positive, reinterpret_cast<Ints>(w[i]));
    negative = max(negative, reinterpret_cast<Words>(w[i]));
  }
  const Ints bits = reinterpret_cast<Ints>(negative);
  const Ints magnitude = bits < 0 ? bits & 0x7fffffff : Ints{};
  return reinterpret_cast<Floats>(positive > magnitude ? positive : bits);
}

/// 1 / scale, and 0 where the scale is 0 or infinite: such a lane is not used.
CFLOW_INLINE Floats usable_inverse(Floats scale) {
  const Ints magnitude = reinterpret_cast<Ints>(scale) & 0x7fffffff;
  return (magnitude == 0) | (magnitude >= 0x7f800000) ? Floats{} : 1.0f / scale;
}
