// Vector primitives of f32 that need no more than AVX, for the units with and without AVX2.
#pragma once

#include <immintrin.h>

#include "layout.h"

namespace cflow {
namespace {

struct AvxFloats {
  using F = __m256;
  static constexpr int kWidth = 8;

  static CFLOW_KERNEL F zero() { return _mm256_setzero_ps(); }
  static CFLOW_KERNEL F set1(float x) { return _mm256_set1_ps(x); }
  static CFLOW_KERNEL F load(const float* p) { return _mm256_loadu_ps(p); }
  static CFLOW_KERNEL void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static CFLOW_KERNEL F add(F a, F b) { return _mm256_add_ps(a, b); }
  static CFLOW_KERNEL F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static CFLOW_KERNEL F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static CFLOW_KERNEL F div(F a, F b) { return _mm256_div_ps(a, b); }
  /// b where either is NaN.
  static CFLOW_KERNEL F min(F a, F b) { return _mm256_min_ps(a, b); }
  static CFLOW_KERNEL F max(F a, F b) { return _mm256_max_ps(a, b); }
  static CFLOW_KERNEL F abs(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  /// To the nearest integer, halves to even.
  static CFLOW_KERNEL F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// a < b ? x : y; y where a or b is NaN.
  static CFLOW_KERNEL F select_lt(F a, F b, F x, F y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  static CFLOW_KERNEL float hsum(F x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static CFLOW_KERNEL float hmax(F x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
};

}  // namespace
}  // namespace cflow
