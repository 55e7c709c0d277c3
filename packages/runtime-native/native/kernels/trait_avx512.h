// Vector primitives of AVX-512 F, BW, DQ and VL; trait_avx2.h says what each does.
#pragma once

#include <immintrin.h>

#include "layout.h"

// g++ 12 takes the deliberately undefined operands of its own intrinsics for a mistake.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace cflow {
namespace {

struct Avx512 {
  using F = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kTokensF32 = 4;
  static constexpr int kTokensQ8 = 8;

  static CFLOW_KERNEL F zero() { return _mm512_setzero_ps(); }
  static CFLOW_KERNEL F set1(float x) { return _mm512_set1_ps(x); }
  static CFLOW_KERNEL F load(const float* p) { return _mm512_loadu_ps(p); }
  static CFLOW_KERNEL void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static CFLOW_KERNEL __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static CFLOW_KERNEL F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static CFLOW_KERNEL void store_n(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static CFLOW_KERNEL F add(F a, F b) { return _mm512_add_ps(a, b); }
  static CFLOW_KERNEL F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static CFLOW_KERNEL F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static CFLOW_KERNEL F div(F a, F b) { return _mm512_div_ps(a, b); }
  static CFLOW_KERNEL F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static CFLOW_KERNEL F min(F a, F b) { return _mm512_min_ps(a, b); }
  static CFLOW_KERNEL F max(F a, F b) { return _mm512_max_ps(a, b); }
  static CFLOW_KERNEL F abs(F x) { return _mm512_abs_ps(x); }
  static CFLOW_KERNEL F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static CFLOW_KERNEL F pow2(F n) {
    const __m512i bits = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 23));
  }
  static CFLOW_KERNEL F select_lt(F a, F b, F x, F y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
  }
  static CFLOW_KERNEL float hsum(F x) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static CFLOW_KERNEL float hmax(F x) { return _mm512_reduce_max_ps(x); }

  static CFLOW_KERNEL F load_f16(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static CFLOW_KERNEL __m128i load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static CFLOW_KERNEL F int8_to_float(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }
  static CFLOW_KERNEL void load_q4_group(const uint8_t* p, F* out) {
    const __m128i bytes = load16(p);
    const __m128i mask = _mm_set1_epi8(15);
    out[0] = int8_to_float(_mm_sub_epi8(_mm_and_si128(bytes, mask), _mm_set1_epi8(8)));
    out[1] = int8_to_float(_mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask), _mm_set1_epi8(8)));
  }
  static CFLOW_KERNEL void load_q8_group(const uint8_t* p, F* out) {
    out[0] = int8_to_float(load16(p));
    out[1] = int8_to_float(load16(p + 16));
  }
  static CFLOW_KERNEL void store_q8_group(int8_t* p, const F* x) {
    for (int k = 0; k < 2; ++k) {
      const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x[k]));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16 * k), bytes);
    }
  }

  using S = __m256;
  static CFLOW_KERNEL S load_scales(const uint8_t* f16_bits) { return _mm256_cvtph_ps(load16(f16_bits)); }
  static CFLOW_KERNEL S load_floats8(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static CFLOW_KERNEL void store_scales(float* p, S s) { _mm256_storeu_ps(p, s); }
  static CFLOW_KERNEL S mul_scales(S a, S b) { return _mm256_mul_ps(a, b); }
  template <int Block>
  static CFLOW_KERNEL F expand4(S s) {
    constexpr int g = 4 * Block;
    const __m512i lanes = _mm512_setr_epi32(g, g, g, g, g + 1, g + 1, g + 1, g + 1, g + 2, g + 2, g + 2, g + 2, g + 3,
                                            g + 3, g + 3, g + 3);
    return _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(s));
  }
  template <int Block>
  static CFLOW_KERNEL F expand8(S s) {
    constexpr int g = 2 * Block;
    const __m512i lanes =
        _mm512_setr_epi32(g, g, g, g, g, g, g, g, g + 1, g + 1, g + 1, g + 1, g + 1, g + 1, g + 1, g + 1);
    return _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(s));
  }

  using B = __m512i;
  using I = __m512i;
  static constexpr int kBytes = 64;
  static constexpr int kQ8Bias = 0;

  static CFLOW_KERNEL B load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static CFLOW_KERNEL I load_ints(const uint8_t* p) { return load_bytes(p); }
  static CFLOW_KERNEL B low_nibbles(B x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static CFLOW_KERNEL B high_nibbles(B x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
  static CFLOW_KERNEL I pairs_to_ints(__m512i x) { return _mm512_madd_epi16(x, _mm512_set1_epi16(1)); }
  static CFLOW_KERNEL I pairs_to_256ths(__m512i x, __m512i rest) {
    return _mm512_add_epi32(_mm512_madd_epi16(x, _mm512_set1_epi16(256)), pairs_to_ints(rest));
  }
  static CFLOW_KERNEL __m512i pairs_q4(B low, B high, B x_low, B x_high) {
    return _mm512_add_epi16(_mm512_maddubs_epi16(low, x_low), _mm512_maddubs_epi16(high, x_high));
  }
  static CFLOW_KERNEL I dot_q4(B low, B high, B x_low, B x_high, I start) {
    return _mm512_add_epi32(pairs_to_ints(pairs_q4(low, high, x_low, x_high)), start);
  }
  static CFLOW_KERNEL I fine_dot_q4(B low, B high, B x_low, B x_high, B rest_low, B rest_high, I start) {
    const __m512i pairs = pairs_q4(low, high, x_low, x_high);
    return _mm512_add_epi32(pairs_to_256ths(pairs, pairs_q4(low, high, rest_low, rest_high)), start);
  }
  static CFLOW_KERNEL __m512i pairs_q8(B w, B x) {
    const __m512i signed_x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
    return _mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_x);
  }
  static CFLOW_KERNEL I dot_q8(B w, B x, I) { return pairs_to_ints(pairs_q8(w, x)); }
  static CFLOW_KERNEL I fine_dot_q8(B w, B x, B rest, I) { return pairs_to_256ths(pairs_q8(w, x), pairs_q8(w, rest)); }
  static CFLOW_KERNEL F to_float(I x) { return _mm512_cvtepi32_ps(x); }
};

}  // namespace
}  // namespace cflow
