// Vector primitives of AVX2 + FMA + F16C. With trait_avx.h this is also the list of what the shared kernels ask of a
// trait.
#pragma once

#include "trait_avx.h"

namespace cflow {
namespace {

struct Avx2 : AvxFloats {
  // --- f32 vectors. ------------------------------------------------------------------------------------------------
  /// Tokens that matmul multiplies a row (f32: four rows) with at once; bounded by the number of registers.
  static constexpr int kTokensF32 = 2;
  static constexpr int kTokensQ8 = 4;

  static CFLOW_KERNEL __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  /// The first n <= kWidth elements, 0 in the others; touches no other memory.
  static CFLOW_KERNEL F load_n(const float* p, int n) {
    return n == kWidth ? load(p) : _mm256_maskload_ps(p, first(n));
  }
  static CFLOW_KERNEL void store_n(float* p, F x, int n) {
    if (n == kWidth) {
      store(p, x);
    } else {
      _mm256_maskstore_ps(p, first(n), x);
    }
  }
  /// a * b + c.
  static CFLOW_KERNEL F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  /// 2^n for integers -126 <= n <= 127.
  static CFLOW_KERNEL F pow2(F n) {
    const __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
  }

  // --- Weights and cache to f32. -----------------------------------------------------------------------------------
  static CFLOW_KERNEL F load_f16(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static CFLOW_KERNEL F int8_to_float(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)); }
  /// 32 integers from 16 bytes of nibbles or from 32 bytes, as f32, in order.
  static CFLOW_KERNEL void load_q4_group(const uint8_t* p, F* out) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i low = _mm_sub_epi8(_mm_and_si128(bytes, mask), _mm_set1_epi8(8));
    const __m128i high = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask), _mm_set1_epi8(8));
    out[0] = int8_to_float(low);
    out[1] = int8_to_float(_mm_srli_si128(low, 8));
    out[2] = int8_to_float(high);
    out[3] = int8_to_float(_mm_srli_si128(high, 8));
  }
  static CFLOW_KERNEL void load_q8_group(const uint8_t* p, F* out) {
    for (int k = 0; k < 4; ++k) {
      out[k] = int8_to_float(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * k)));
    }
  }
  /// Rounds 32 numbers of magnitude <= 127 to int8, halves to even.
  static CFLOW_KERNEL void store_q8_group(int8_t* p, const F* x) {
    const __m256i a = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
    const __m256i b = _mm256_packs_epi32(_mm256_cvtps_epi32(x[2]), _mm256_cvtps_epi32(x[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
  }

  // --- The 8 scales of a tile row. ---------------------------------------------------------------------------------
  using S = __m256;
  static CFLOW_KERNEL S load_scales(const uint8_t* f16_bits) { return load_f16(f16_bits); }
  static CFLOW_KERNEL S load_floats8(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  static CFLOW_KERNEL void store_scales(float* p, S s) { store(p, s); }
  static CFLOW_KERNEL S mul_scales(S a, S b) { return mul(a, b); }
  /// The scales of block Block in lanes of 4: blocks of nibbles, 16 bytes to a group.
  template <int Block>
  static CFLOW_KERNEL F expand4(S s) {
    constexpr int g = 2 * Block;
    return _mm256_permutevar8x32_ps(s, _mm256_setr_epi32(g, g, g, g, g + 1, g + 1, g + 1, g + 1));
  }
  /// In lanes of 8: blocks of int8, 32 bytes to a group.
  template <int Block>
  static CFLOW_KERNEL F expand8(S s) {
    return _mm256_permutevar8x32_ps(s, _mm256_set1_epi32(Block));
  }

  // --- Integer dot products. ---------------------------------------------------------------------------------------
  using B = __m256i;
  using I = __m256i;  // int32
  static constexpr int kBytes = 32;
  /// What dot_q8 adds to each weight: 128 if it multiplies unsigned by signed.
  static constexpr int kQ8Bias = 0;

  static CFLOW_KERNEL B load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static CFLOW_KERNEL I load_ints(const uint8_t* p) { return load_bytes(p); }
  static CFLOW_KERNEL B low_nibbles(B x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
  static CFLOW_KERNEL B high_nibbles(B x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
  static CFLOW_KERNEL I pairs_to_ints(__m256i x) { return _mm256_madd_epi16(x, _mm256_set1_epi16(1)); }
  /// 256 * x + rest, pairs of int16 added up.
  static CFLOW_KERNEL I pairs_to_256ths(__m256i x, __m256i rest) {
    return _mm256_add_epi32(_mm256_madd_epi16(x, _mm256_set1_epi16(256)), pairs_to_ints(rest));
  }
  /// start + sum of low * x_low + high * x_high over the bytes of each group; lanes of a group may be mixed.
  static CFLOW_KERNEL I dot_q4(B low, B high, B x_low, B x_high, I start) {
    return _mm256_add_epi32(pairs_to_ints(pairs_q4(low, high, x_low, x_high)), start);
  }
  static CFLOW_KERNEL __m256i pairs_q4(B low, B high, B x_low, B x_high) {
    // At most 4 * 15 * 127 to an int16.
    return _mm256_add_epi16(_mm256_maddubs_epi16(low, x_low), _mm256_maddubs_epi16(high, x_high));
  }
  /// The same of 256 * x + rest, |rest| <= 127.
  static CFLOW_KERNEL I fine_dot_q4(B low, B high, B x_low, B x_high, B rest_low, B rest_high, I start) {
    const __m256i pairs = pairs_q4(low, high, x_low, x_high);
    return _mm256_add_epi32(pairs_to_256ths(pairs, pairs_q4(low, high, rest_low, rest_high)), start);
  }
  /// Sum of w * x over the bytes of each group, |x| <= 127; start is for kQ8Bias.
  static CFLOW_KERNEL I dot_q8(B w, B x, I) {
    return pairs_to_ints(pairs_q8(w, x));
  }
  static CFLOW_KERNEL __m256i pairs_q8(B w, B x) {
    // At most 2 * 128 * 127 = 32,512 to an int16.
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  }
  /// The same of 256 * x + rest, |rest| <= 127.
  static CFLOW_KERNEL I fine_dot_q8(B w, B x, B rest, I) { return pairs_to_256ths(pairs_q8(w, x), pairs_q8(w, rest)); }
  static CFLOW_KERNEL F to_float(I x) { return _mm256_cvtepi32_ps(x); }
};

}  // namespace
}  // namespace cflow
