// Matrix kernels for AVX-512 VNNI, written by hand: decoding and prefill spend their time here. This header is what the
// two share, the quantized activations; q8_avx512_vnni_matvec.h and q8_avx512_vnni_matmul.h multiply with them. All are
// included by avx512_vnni.cpp inside its own namespace.
//
// vpdpbusd multiplies unsigned by signed bytes, four to a 32-bit lane. Weights are made unsigned by adding 8 (q4_0:
// they are stored so) or 128 (q8_0: the sign bit flipped), and every sum starts at minus that times the sum of the
// activations, which costs nothing: an accumulator has to start at something.

/// The activations of one tile, 256 columns; beyond the matrix's width they are zero.
struct alignas(64) Q8Tile {
  /// In the order in which the bytes of a row of weights meet them: for q4_0, per 128 columns, the 64 that face low
  /// nibbles (0 to 15 of each group), then the 64 that face high nibbles; for q8_0 as they come.
  int8_t quants[kTileCols];
  /// What rounding to `quants` left, in 256ths of a step, in the same order. One vector at a time the memory leaves
  /// time to use it, so decoding computes with 15-bit activations; many vectors at a time are bound by the multipliers,
  /// and go without.
  int8_t rests[kTileCols];
  float scales[kTileCols / kGroup];
  /// Per group: -8 or -128 times the sum of its quants.
  int32_t offsets[kTileCols / kGroup];
};

static size_t vnni_q8_row_bytes(int cols) { return static_cast<size_t>(ceil_div(cols, kTileCols)) * sizeof(Q8Tile); }

template <Dtype D>
struct Weights8;

template <>
struct Weights8<Dtype::q4_0> {
  static constexpr int kBias = 8;
  /// Where the quants 4 j to 4 j + 3 of a group stand in Q8Tile::quants, j < 8.
  static constexpr int quad(int group, int j) {
    return group / 4 * 128 + (j / 4) * 64 + group % 4 * 16 + j % 4 * 4;
  }
};

template <>
struct Weights8<Dtype::q8_0> {
  static constexpr int kBias = 128;
  static constexpr int quad(int group, int j) { return group * kGroup + 4 * j; }
};

/// (scaled - quants) in 256ths; half a step is 128 of them, and becomes 127 of either sign.
static inline __m128i rest_of(__m512 scaled, __m512i quants) {
  const __m512 rest = _mm512_sub_ps(scaled, _mm512_cvtepi32_ps(quants));
  const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(rest, _mm512_set1_ps(256.0f))));
  return _mm_max_epi8(bytes, _mm_set1_epi8(-127));
}

template <Dtype D>
static void vnni_quantize_group(const float* x, int n, int group, Q8Tile& tile) {
  const __mmask16 low = n >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << n) - 1);
  const __mmask16 high = n >= 32 ? 0xFFFF : n <= 16 ? 0 : static_cast<__mmask16>((1u << (n - 16)) - 1);
  const __m512 a = _mm512_maskz_loadu_ps(low, x);
  const __m512 b = _mm512_maskz_loadu_ps(high, x + 16);
  const float amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  // NaN slips through a maximum, but not through a comparison with infinity.
  const __m512 infinity = _mm512_set1_ps(__builtin_inff());
  const bool finite = (_mm512_cmp_ps_mask(_mm512_abs_ps(a), infinity, _CMP_NLT_UQ) |
                       _mm512_cmp_ps_mask(_mm512_abs_ps(b), infinity, _CMP_NLT_UQ)) == 0;
  const float scale = amax / 127.0f < kLeastScale ? 0.0f : amax / 127.0f;
  const __m512 inverse = _mm512_set1_ps(finite && scale > 0 ? 127.0f / amax : 0.0f);
  // NaN converts to the least integer, whose sums overflow: such a group has no numbers, only its scale.
  const __mmask16 all = finite ? 0xFFFF : 0;
  const __m512 sa = _mm512_maskz_mul_ps(all, a, inverse);
  const __m512 sb = _mm512_maskz_mul_ps(all, b, inverse);
  const __m512i qa = _mm512_cvtps_epi32(sa);
  const __m512i qb = _mm512_cvtps_epi32(sb);
  tile.scales[group] = finite ? scale : __builtin_nanf("");
  tile.offsets[group] = -Weights8<D>::kBias * _mm512_reduce_add_epi32(_mm512_add_epi32(qa, qb));
  const int low_at = Weights8<D>::quad(group, 0);
  const int high_at = Weights8<D>::quad(group, 4);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(tile.quants + low_at), _mm512_cvtsepi32_epi8(qa));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(tile.quants + high_at), _mm512_cvtsepi32_epi8(qb));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(tile.rests + low_at), rest_of(sa, qa));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(tile.rests + high_at), rest_of(sb, qb));
}

template <Dtype D>
static void quantize_row_for(const float* x, int cols, uint8_t* row) {
  auto* tiles = reinterpret_cast<Q8Tile*>(row);
  const int groups = ceil_div(cols, kTileCols) * (kTileCols / kGroup);
  for (int g = 0; g < groups; g++) {
    const int left = cols - g * kGroup;
    const int n = left < 0 ? 0 : left < kGroup ? left : kGroup;
    vnni_quantize_group<D>(x + (n ? g * kGroup : 0), n, g % 8, tiles[g / 8]);
  }
}

static void vnni_quantize_row(Dtype weights, const float* x, int cols, uint8_t* row) {
  if (weights == Dtype::q4_0) return quantize_row_for<Dtype::q4_0>(x, cols, row);
  quantize_row_for<Dtype::q8_0>(x, cols, row);
}

static inline __m512i low_nibbles(__m512i bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(15)); }
static inline __m512i high_nibbles(__m512i bytes) { return low_nibbles(_mm512_srli_epi16(bytes, 4)); }
