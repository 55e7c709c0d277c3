// AVX for f32, SSE4.1 for integers: CPUs from 2011 on, without AVX2, FMA and F16C. Integer vectors are pairs of 16
// bytes. trait_avx2.h says what each primitive does.
#include "trait_avx.h"

#include "table.h"

namespace cflow {
namespace {

struct Pair {
  __m128i a, b;
};

CFLOW_KERNEL __m256 pair_to_float(__m128i a, __m128i b) {
  return _mm256_cvtepi32_ps(_mm256_insertf128_si256(_mm256_castsi128_si256(a), b, 1));
}

struct Sse41 : AvxFloats {
  static constexpr int kTokensF32 = 2;
  static constexpr int kTokensQ8 = 4;

  static CFLOW_KERNEL __m256i first(int n) {
    const __m128i count = _mm_set1_epi32(n);
    const __m128i a = _mm_cmpgt_epi32(count, _mm_setr_epi32(0, 1, 2, 3));
    return _mm256_insertf128_si256(_mm256_castsi128_si256(a), _mm_cmpgt_epi32(count, _mm_setr_epi32(4, 5, 6, 7)), 1);
  }
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
  static CFLOW_KERNEL F fma(F a, F b, F c) { return _mm256_add_ps(_mm256_mul_ps(a, b), c); }
  static CFLOW_KERNEL __m128i shift_exponent(__m128i n) {
    return _mm_slli_epi32(_mm_add_epi32(n, _mm_set1_epi32(127)), 23);
  }
  static CFLOW_KERNEL F pow2(F n) {
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m128i a = shift_exponent(_mm256_castsi256_si128(whole));
    const __m128i b = shift_exponent(_mm256_extractf128_si256(whole, 1));
    return _mm256_castsi256_ps(_mm256_insertf128_si256(_mm256_castsi128_si256(a), b, 1));
  }

  /// Exponent and fraction, moved to their places in an f32, are the number times 2^-112; the product with 2^112 is
  /// exact for subnormals too. Inf and NaN get the largest exponent besides.
  static CFLOW_KERNEL __m128 half_to_float(__m128i h) {
    const __m128i bits = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x7fff)), 13);
    const __m128i sign = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x8000)), 16);
    const __m128 number = _mm_mul_ps(_mm_castsi128_ps(bits), _mm_castsi128_ps(_mm_set1_epi32((112 + 127) << 23)));
    const __m128i special = _mm_cmpgt_epi32(bits, _mm_set1_epi32((0x7c00 << 13) - 1));
    const __m128i high = _mm_or_si128(sign, _mm_and_si128(special, _mm_set1_epi32(0x7f800000)));
    return _mm_or_ps(number, _mm_castsi128_ps(high));
  }
  static CFLOW_KERNEL F load_f16(const uint8_t* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128 a = half_to_float(_mm_cvtepu16_epi32(h));
    return _mm256_insertf128_ps(_mm256_castps128_ps256(a), half_to_float(_mm_cvtepu16_epi32(_mm_srli_si128(h, 8))), 1);
  }
  static CFLOW_KERNEL F int8_to_float(__m128i bytes) {
    return pair_to_float(_mm_cvtepi8_epi32(bytes), _mm_cvtepi8_epi32(_mm_srli_si128(bytes, 4)));
  }
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
  static CFLOW_KERNEL __m128i to_int16(F x) {
    const __m256i n = _mm256_cvtps_epi32(x);
    return _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extractf128_si256(n, 1));
  }
  static CFLOW_KERNEL void store_q8_group(int8_t* p, const F* x) {
    for (int k = 0; k < 2; ++k) {
      const __m128i bytes = _mm_packs_epi16(to_int16(x[2 * k]), to_int16(x[2 * k + 1]));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16 * k), bytes);
    }
  }

  using S = __m256;
  static CFLOW_KERNEL S load_scales(const uint8_t* f16_bits) { return load_f16(f16_bits); }
  static CFLOW_KERNEL S load_floats8(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  static CFLOW_KERNEL void store_scales(float* p, S s) { store(p, s); }
  static CFLOW_KERNEL S mul_scales(S a, S b) { return mul(a, b); }
  template <int Block>
  static CFLOW_KERNEL F expand4(S s) {
    const __m256 half = _mm256_permute2f128_ps(s, s, Block < 2 ? 0x00 : 0x11);
    constexpr int g = 2 * Block % 4;
    return _mm256_permutevar_ps(half, _mm256_setr_epi32(g, g, g, g, g + 1, g + 1, g + 1, g + 1));
  }
  template <int Block>
  static CFLOW_KERNEL F expand8(S s) {
    const __m256 half = _mm256_permute2f128_ps(s, s, Block < 4 ? 0x00 : 0x11);
    return _mm256_permute_ps(half, Block % 4 * 0x55);
  }

  using B = Pair;
  using I = Pair;
  static constexpr int kBytes = 32;
  static constexpr int kQ8Bias = 0;

  static CFLOW_KERNEL B load_bytes(const uint8_t* p) {
    const auto* v = reinterpret_cast<const __m128i*>(p);
    return {_mm_loadu_si128(v), _mm_loadu_si128(v + 1)};
  }
  static CFLOW_KERNEL I load_ints(const uint8_t* p) { return load_bytes(p); }
  static CFLOW_KERNEL __m128i low4(__m128i x) { return _mm_and_si128(x, _mm_set1_epi8(15)); }
  static CFLOW_KERNEL B low_nibbles(B x) { return {low4(x.a), low4(x.b)}; }
  static CFLOW_KERNEL B high_nibbles(B x) { return {low4(_mm_srli_epi16(x.a, 4)), low4(_mm_srli_epi16(x.b, 4))}; }
  static CFLOW_KERNEL __m128i pairs_to_ints(__m128i x) { return _mm_madd_epi16(x, _mm_set1_epi16(1)); }
  static CFLOW_KERNEL __m128i pairs_to_256ths(__m128i x, __m128i rest) {
    return _mm_add_epi32(_mm_madd_epi16(x, _mm_set1_epi16(256)), pairs_to_ints(rest));
  }
  static CFLOW_KERNEL Pair pairs_q4(B low, B high, B x_low, B x_high) {
    return {_mm_add_epi16(_mm_maddubs_epi16(low.a, x_low.a), _mm_maddubs_epi16(high.a, x_high.a)),
            _mm_add_epi16(_mm_maddubs_epi16(low.b, x_low.b), _mm_maddubs_epi16(high.b, x_high.b))};
  }
  static CFLOW_KERNEL I dot_q4(B low, B high, B x_low, B x_high, I start) {
    const Pair pairs = pairs_q4(low, high, x_low, x_high);
    return {_mm_add_epi32(pairs_to_ints(pairs.a), start.a), _mm_add_epi32(pairs_to_ints(pairs.b), start.b)};
  }
  static CFLOW_KERNEL I fine_dot_q4(B low, B high, B x_low, B x_high, B rest_low, B rest_high, I start) {
    const Pair pairs = pairs_q4(low, high, x_low, x_high);
    const Pair rests = pairs_q4(low, high, rest_low, rest_high);
    return {_mm_add_epi32(pairs_to_256ths(pairs.a, rests.a), start.a),
            _mm_add_epi32(pairs_to_256ths(pairs.b, rests.b), start.b)};
  }
  static CFLOW_KERNEL __m128i pairs8(__m128i w, __m128i x) {
    return _mm_maddubs_epi16(_mm_abs_epi8(w), _mm_sign_epi8(x, w));
  }
  static CFLOW_KERNEL I dot_q8(B w, B x, I) {
    return {pairs_to_ints(pairs8(w.a, x.a)), pairs_to_ints(pairs8(w.b, x.b))};
  }
  static CFLOW_KERNEL I fine_dot_q8(B w, B x, B rest, I) {
    return {pairs_to_256ths(pairs8(w.a, x.a), pairs8(w.a, rest.a)),
            pairs_to_256ths(pairs8(w.b, x.b), pairs8(w.b, rest.b))};
  }
  static CFLOW_KERNEL F to_float(I x) { return pair_to_float(x.a, x.b); }
};

}  // namespace

extern const Kernels kKernelsSse41;
constinit const Kernels kKernelsSse41 = kernels_of<Sse41>("sse41");

}  // namespace cflow
