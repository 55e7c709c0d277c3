// int8 matrix kernels for AVX-512 VNNI, written by hand: decoding and prefill spend their time here. Included by
// avx512_vnni.cpp inside its own namespace.
//
// vpdpbusd multiplies unsigned by signed bytes, four to a 32-bit lane. Weights are made unsigned by adding 8 (q4_0: they
// are stored so) or 128 (q8_0: the sign bit flipped), and every sum starts at minus that times the sum of the
// activations, which costs nothing: an accumulator has to start at something.

/// The activations of one tile, 256 columns; beyond the matrix's width they are zero.
struct alignas(64) Q8Tile {
  /// In the order in which the bytes of a row of weights meet them: for q4_0, per 128 columns, the 64 that face low
  /// nibbles (0 to 15 of each group), then the 64 that face high nibbles; for q8_0 as they come.
  int8_t quants[kTileCols];
  /// What rounding to `quants` left, in 256ths of a step, in the same order. One vector at a time the memory leaves time
  /// to use it, so decoding computes with 15-bit activations; many vectors at a time are bound by the multipliers, and
  /// go without.
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

/// (scaled - quants) in 256ths; half a step is 128 of them, and becomes 127.
static inline __m128i rest_of(__m512 scaled, __m512i quants) {
  const __m512 rest = _mm512_sub_ps(scaled, _mm512_cvtepi32_ps(quants));
  return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(rest, _mm512_set1_ps(256.0f))));
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

// --- Many vectors: sixteen rows side by side ---------------------------------------------------------------------------

/// Sums of 16 vectors: lane i of the result is the sum of v[i].
static inline __m512 sum_lanes(const float* v) {
  __m512 a[16];
  for (int i = 0; i < 16; i++) a[i] = _mm512_load_ps(v + 16 * i);
  // Each round halves the vectors and adds the halves: 8 + 4 + 2 + 1 pairs.
  for (int i = 0; i < 8; i++) {
    a[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xFF00, a[i], a[i + 8]), _mm512_shuffle_f32x4(a[i], a[i + 8], 0x4E));
  }
  for (int i = 0; i < 4; i++) {
    const __m512 crossed = _mm512_permutex2var_ps(
        a[i], _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27), a[i + 4]);
    a[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xF0F0, a[i], a[i + 4]), crossed);
  }
  for (int i = 0; i < 2; i++) {
    const __m512 crossed = _mm512_shuffle_ps(a[i], a[i + 2], 0x4E);
    a[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xCCCC, a[i], a[i + 2]), crossed);
  }
  const __m512 crossed = _mm512_permutex2var_ps(
      a[0], _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30), a[1]);
  return _mm512_add_ps(_mm512_mask_blend_ps(0xAAAA, a[0], a[1]), crossed);
}

/// Transposes 16 x 16 dwords: out[d] holds dword d of rows 0 to 15.
static inline void transpose(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; i++) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  // r[4 i + c] holds, in each 128-bit lane l, dword 4 l + c of rows 4 i to 4 i + 3.
  for (int c = 0; c < 4; c++) {
    t[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xDD);
    t[8 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xDD);
  }
  for (int c = 0; c < 4; c++) {
    r[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xDD);
    r[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
    r[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xDD);
  }
}

/// Sixteen rows of a tile, unpacked for the inner loop of matmul.
struct alignas(64) Panel {
  /// [group][j][row][4]: the unsigned weights 4 j to 4 j + 3 of a group, of 16 rows.
  uint8_t weights[8][8][64];
  /// [group][row]
  float scales[8][16];
};

static inline __m512i low_nibbles(__m512i bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(15)); }
static inline __m512i high_nibbles(__m512i bytes) { return low_nibbles(_mm512_srli_epi16(bytes, 4)); }

/// Some panels ahead, into the second cache: the first has its hands full with activations. Measured: 8 vectors 151 to
/// 203 GOP/s, 64 vectors 310 to 327, against a prefetch of 4 KiB into the first.
static inline void fetch_ahead(const uint8_t* weights) { __builtin_prefetch(weights + 8192, 0, 2); }

/// Dwords 16 block to 16 block + 15 of 16 rows of `bytes` bytes each; zero beyond row and matrix.
static inline void load_dwords(const uint8_t* data, int bytes, int rows, int block, __m512i r[16]) {
  const int left = bytes - 64 * block;
  const __mmask16 mask = left >= 64 ? 0xFFFF : left <= 0 ? 0 : static_cast<__mmask16>((1u << (left / 4)) - 1);
  for (int i = 0; i < 16; i++) {
    fetch_ahead(data + i * bytes + 64 * block);
    r[i] = _mm512_maskz_loadu_epi32(i < rows ? mask : 0, data + i * bytes + 64 * block);
  }
}

static void unpack(const uint8_t* data, int groups, int rows, Panel& panel, Weights8<Dtype::q4_0>) {
  for (int block = 0; block < 2; block++) {
    __m512i r[16];
    load_dwords(data, 16 * groups, rows, block, r);
    transpose(r);
    for (int d = 0; d < 16; d++) {
      _mm512_store_si512(panel.weights[4 * block + d / 4][d % 4], low_nibbles(r[d]));
      _mm512_store_si512(panel.weights[4 * block + d / 4][4 + d % 4], high_nibbles(r[d]));
    }
  }
}

static void unpack(const uint8_t* data, int groups, int rows, Panel& panel, Weights8<Dtype::q8_0>) {
  for (int block = 0; block < 4; block++) {
    __m512i r[16];
    load_dwords(data, 32 * groups, rows, block, r);
    transpose(r);
    for (int d = 0; d < 16; d++) {
      const __m512i flipped = _mm512_xor_si512(r[d], _mm512_set1_epi8(-128));
      _mm512_store_si512(panel.weights[2 * block + d / 8][d % 8], flipped);
    }
  }
}

static void unpack_scales(const uint8_t* scales, int groups, int rows, Panel& panel) {
  alignas(64) float by_row[16][16];
  const auto mask = static_cast<__mmask16>((1u << groups) - 1);
  for (int i = 0; i < 16; i++) {
    fetch_ahead(scales + 2 * groups * i);
    const __m256i bits = _mm256_maskz_loadu_epi16(i < rows ? mask : 0, scales + 2 * groups * i);
    _mm512_store_ps(by_row[i], _mm512_cvtph_ps(bits));
  }
  __m512i r[16];
  for (int i = 0; i < 16; i++) r[i] = _mm512_load_si512(by_row[i]);
  transpose(r);
  for (int g = 0; g < 8; g++) _mm512_store_si512(panel.scales[g], r[g]);
}

/// Adds (or, of the first tile, sets) 16 rows times N vectors: acc[n * stride + row].
template <Dtype D, int N>
static inline void panel_times(const Panel& panel, int groups, const Q8Tile* const* x, int tile, bool first, float* acc) {
  const Q8Tile* t[N];
  __m512 sums[N];
  for (int n = 0; n < N; n++) {
    t[n] = x[n] + tile;
    sums[n] = first ? _mm512_setzero_ps() : _mm512_load_ps(acc + n * kTileRows);
  }
  for (int g = 0; g < groups; g++) {
    __m512i dots[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) dots[n] = _mm512_set1_epi32(t[n]->offsets[g]);
    const int base = Weights8<D>::quad(g, 0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
      const __m512i weights = _mm512_load_si512(panel.weights[g][j]);
      const int at = base + (Weights8<D>::quad(0, j) - Weights8<D>::quad(0, 0));
#pragma GCC unroll 16
      for (int n = 0; n < N; n++) {
        int quad;
        __builtin_memcpy(&quad, t[n]->quants + at, 4);
        dots[n] = _mm512_dpbusd_epi32(dots[n], weights, _mm512_set1_epi32(quad));
      }
    }
    const __m512 scales = _mm512_load_ps(panel.scales[g]);
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) {
      const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(t[n]->scales[g]));
      sums[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[n]), scale, sums[n]);
    }
  }
  for (int n = 0; n < N; n++) _mm512_store_ps(acc + n * kTileRows, sums[n]);
}

/// Vectors that share a load of weights: as many sums and dots as registers hold.
constexpr int kVectors = 8;
/// Vectors whose accumulators stay in the cache of a core while a stripe passes.
constexpr int kBlock = 64;

template <Dtype D>
static void panel_times_all(const Panel& panel, int groups, const Q8Tile* const* x, int tokens, int tile, bool first,
                            float* acc) {
  int n = 0;
  for (; n + kVectors <= tokens; n += kVectors) {
    panel_times<D, kVectors>(panel, groups, x + n, tile, first, acc + n * kTileRows);
  }
  for (; n + 2 <= tokens; n += 2) panel_times<D, 2>(panel, groups, x + n, tile, first, acc + n * kTileRows);
  if (n < tokens) panel_times<D, 1>(panel, groups, x + n, tile, first, acc + n * kTileRows);
}

template <Dtype D>
static void matmul_block(const uint8_t* stripe, int rows, int cols, const Q8Tile* const* x, int tokens,
                         float* const* out) {
  alignas(64) float acc[kBlock * kTileRows];
  Panel panel;
  for (int col = 0; col < cols; col += kTileCols) {
    const int width = cols - col < kTileCols ? cols - col : kTileCols;
    const int groups = ceil_div(width, kGroup);
    const uint8_t* scales = stripe + kTileHeaderBytes;
    const uint8_t* data = scales + 2 * groups * rows;
    const int bytes = static_cast<int>(row_bytes(D, width));
    for (int row = 0; row < rows; row += 16) {
      const int height = rows - row < 16 ? rows - row : 16;
      unpack(data + row * bytes, groups, height, panel, Weights8<D>());
      unpack_scales(scales + 2 * groups * row, groups, height, panel);
      panel_times_all<D>(panel, groups, x, tokens, col / kTileCols, col == 0, acc + row);
    }
    stripe += tile_bytes(D, rows, width);
  }
  for (int n = 0; n < tokens; n++) __builtin_memcpy(out[n], acc + n * kTileRows, sizeof(float) * static_cast<size_t>(rows));
}

template <Dtype D>
static void vnni_matmul_q8(const uint8_t* stripe, int rows, int cols, const void* const* x, int tokens,
                           float* const* out) {
  const auto* vectors = reinterpret_cast<const Q8Tile* const*>(x);
  for (int n = 0; n < tokens; n += kBlock) {
    matmul_block<D>(stripe, rows, cols, vectors + n, tokens - n < kBlock ? tokens - n : kBlock, out + n);
  }
}

// --- One vector: the weights pass once, at the speed of memory ----------------------------------------------------------

/// Fetches what follows a tile, as many bytes a row as the tile has: every line of the next tile, scales included, once.
/// Into the second cache: the first has too few lines in flight. Measured, one thread, from memory: 28 GB/s, against 18
/// for nibbles alone 4 KiB ahead and 12 without; a plain read loop, which the hardware prefetches, reaches 22.
static inline void fetch_next_tile(const uint8_t* next, int row, int bytes_per_row) {
  for (int at = 0; at < bytes_per_row; at += 64) __builtin_prefetch(next + row * bytes_per_row + at, 0, 2);
}

/// One 128-column half of the activations of a tile, as the rows of weights meet it. The integer sums are 256 times
/// those of the quants plus those of the rests, and start at -8 times the sums of the activations.
struct HalfTile {
  __m512i low, high, start;
  __m512i rest_low, rest_high, rest_start;
  __m512 scale;
};

/// -bias times the sums of four activations, by lane; bias as an unsigned byte.
static inline __m512i start_of(__m512i start, __m512i bias, __m512i activations) {
  const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bias, activations);
  return _mm512_sub_epi32(start, sums);
}

static inline HalfTile half_tile(const Q8Tile& x, int half) {
  HalfTile h;
  h.low = _mm512_load_si512(x.quants + 128 * half);
  h.high = _mm512_load_si512(x.quants + 128 * half + 64);
  h.rest_low = _mm512_load_si512(x.rests + 128 * half);
  h.rest_high = _mm512_load_si512(x.rests + 128 * half + 64);
  const __m512i eight = _mm512_set1_epi8(8);
  h.start = start_of(start_of(_mm512_setzero_si512(), eight, h.low), eight, h.high);
  h.rest_start = start_of(start_of(_mm512_setzero_si512(), eight, h.rest_low), eight, h.rest_high);
  const __m512i lanes = _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                         _mm512_set1_epi32(4 * half));
  const __m512 scales = _mm512_castps256_ps512(_mm256_load_ps(x.scales));
  h.scale = _mm512_permutexvar_ps(lanes, _mm512_mul_ps(scales, _mm512_set1_ps(1.0f / 256)));
  return h;
}

/// sum + 128 columns of a row of nibbles times activations, per lane; `scales` holds those of the row's 8 groups.
static inline __m512 add_half(__m512 sum, __m512i nibbles, const HalfTile& x, __m512 scales, __m512i lanes) {
  const __m512i low = low_nibbles(nibbles);
  const __m512i high = high_nibbles(nibbles);
  const __m512i dots = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(x.start, low, x.low), high, x.high);
  const __m512i rests = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(x.rest_start, low, x.rest_low), high, x.rest_high);
  const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(dots, 8), rests);
  const __m512 scale = _mm512_mul_ps(_mm512_permutexvar_ps(lanes, scales), x.scale);
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), scale, sum);
}

/// Rows of one tile of q4_0; acc[16 row] holds 16 partial sums of each. F: the tile is 256 columns wide.
template <bool Full>
static inline void tile_times(const uint8_t* tile, int rows, int groups, const Q8Tile& x, bool first, float* acc) {
  const uint8_t* scales = tile + kTileHeaderBytes;
  const uint8_t* data = scales + 2 * groups * rows;
  const HalfTile left = half_tile(x, 0);
  const HalfTile right = half_tile(x, 1);
  const __m512i left_lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m512i right_lanes = _mm512_setr_epi32(4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7);
  const auto scale_mask = static_cast<__mmask8>((1u << groups) - 1);
  const int left_groups = groups < 4 ? groups : 4;
  const __mmask64 left_mask = left_groups == 4 ? ~0ull : (1ull << (16 * left_groups)) - 1;
  const __mmask64 right_mask = groups == 8 ? ~0ull : groups <= 4 ? 0 : (1ull << (16 * (groups - 4))) - 1;
  const int bytes = Full ? 128 : 16 * groups;
  const uint8_t* next = data + rows * bytes;
  for (int r = 0; r < rows; r++) {
    const uint8_t* row = data + r * bytes;
    fetch_next_tile(next, r, bytes + 2 * groups);
    __m512i a, b;
    __m128i f16;
    if constexpr (Full) {
      a = _mm512_loadu_si512(row);
      b = _mm512_loadu_si512(row + 64);
      f16 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 16 * r));
    } else {
      a = _mm512_maskz_loadu_epi8(left_mask, row);
      b = _mm512_maskz_loadu_epi8(right_mask, row + 64);
      f16 = _mm_maskz_loadu_epi16(scale_mask, scales + 2 * groups * r);
    }
    const __m512 s = _mm512_castps256_ps512(_mm256_cvtph_ps(f16));
    __m512 sum = first ? _mm512_setzero_ps() : _mm512_load_ps(acc + 16 * r);
    sum = add_half(sum, a, left, s, left_lanes);
    sum = add_half(sum, b, right, s, right_lanes);
    _mm512_store_ps(acc + 16 * r, sum);
  }
}

static void write_sums(float* acc, int rows, float* out) {
  // Rows beyond the stripe share the last block: their accumulators hold nothing, and are not written.
  for (int r = rows; r % 16; r++) _mm512_store_ps(acc + 16 * r, _mm512_setzero_ps());
  for (int r = 0; r < rows; r += 16) {
    const __mmask16 mask = rows - r >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << (rows - r)) - 1);
    _mm512_mask_storeu_ps(out + r, mask, sum_lanes(acc + 16 * r));
  }
}

static void matvec_q4_0_q8(const uint8_t* stripe, int rows, int cols, const void* x, float* out) {
  const auto* tiles = static_cast<const Q8Tile*>(x);
  alignas(64) float acc[16 * kTileRows];
  for (int col = 0; col < cols; col += kTileCols) {
    const int width = cols - col < kTileCols ? cols - col : kTileCols;
    const Q8Tile& activations = tiles[col / kTileCols];
    if (width == kTileCols) tile_times<true>(stripe, rows, 8, activations, col == 0, acc);
    else tile_times<false>(stripe, rows, ceil_div(width, kGroup), activations, col == 0, acc);
    stripe += tile_bytes(Dtype::q4_0, rows, width);
  }
  write_sums(acc, rows, out);
}

/// 64 columns of a row of q8_0: two groups. `scales` are those of the row times those of the activations.
static inline __m512 add_pair(__m512 sum, __m512i weights, const Q8Tile& x, int pair, __m512 scales) {
  const __m512i quants = _mm512_load_si512(x.quants + 64 * pair);
  const __m512i rests = _mm512_load_si512(x.rests + 64 * pair);
  const __m512i bias = _mm512_set1_epi8(-128);  // 128, read as unsigned
  const __m512i flipped = _mm512_xor_si512(weights, bias);
  const __m512i zero = _mm512_setzero_si512();
  const __m512i dots = _mm512_dpbusd_epi32(start_of(zero, bias, quants), flipped, quants);
  const __m512i rest_dots = _mm512_dpbusd_epi32(start_of(zero, bias, rests), flipped, rests);
  const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(dots, 8), rest_dots);
  const __m512i lanes = _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                                         _mm512_set1_epi32(2 * pair));
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), _mm512_permutexvar_ps(lanes, scales), sum);
}

static void matvec_q8_0_q8(const uint8_t* stripe, int rows, int cols, const void* x, float* out) {
  const auto* tiles = static_cast<const Q8Tile*>(x);
  alignas(64) float acc[16 * kTileRows];
  for (int col = 0; col < cols; col += kTileCols) {
    const int width = cols - col < kTileCols ? cols - col : kTileCols;
    const int groups = ceil_div(width, kGroup);
    const uint8_t* scales = stripe + kTileHeaderBytes;
    const uint8_t* data = scales + 2 * groups * rows;
    const auto scale_mask = static_cast<__mmask8>((1u << groups) - 1);
    const __mmask64 last_mask = groups % 2 ? 0xFFFFFFFFull : ~0ull;
    const int pairs = (groups + 1) / 2;
    const __m256 activation_scales = _mm256_mul_ps(_mm256_load_ps(tiles[col / kTileCols].scales), _mm256_set1_ps(1.0f / 256));
    for (int r = 0; r < rows; r++) {
      const uint8_t* row = data + 32 * groups * r;
      fetch_next_tile(data + 32 * groups * rows, r, 34 * groups);
      const __m128i f16 = _mm_maskz_loadu_epi16(scale_mask, scales + 2 * groups * r);
      const __m512 s = _mm512_castps256_ps512(_mm256_mul_ps(_mm256_cvtph_ps(f16), activation_scales));
      __m512 sum = col ? _mm512_load_ps(acc + 16 * r) : _mm512_setzero_ps();
      for (int pair = 0; pair < pairs; pair++) {
        const __m512i weights = _mm512_maskz_loadu_epi8(pair + 1 == pairs ? last_mask : ~0ull, row + 64 * pair);
        sum = add_pair(sum, weights, tiles[col / kTileCols], pair, s);
      }
      _mm512_store_ps(acc + 16 * r, sum);
    }
    stripe += tile_bytes(Dtype::q8_0, rows, width);
  }
  write_sums(acc, rows, out);
}
