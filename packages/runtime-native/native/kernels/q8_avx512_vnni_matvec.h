// One vector with AVX-512 VNNI, or a few: the weights pass once, at the speed of memory.

/// Fetches what follows a tile, as many bytes a row as the tile has: every line of the next tile, scales included,
/// once. Into the second cache: the first has too few lines in flight. Measured, one thread, from memory: 28 GB/s,
/// against 18 for nibbles alone 4 KiB ahead and 12 without; a plain read loop, which the hardware prefetches, reaches
/// 22.
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

/// sum + 128 columns of a row, unpacked, times activations, per lane; `scales` are those of the lanes.
static inline __m512 add_half(__m512 sum, __m512i low, __m512i high, const HalfTile& x, __m512 scales) {
  const __m512i dots = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(x.start, low, x.low), high, x.high);
  const __m512i rests = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(x.rest_start, low, x.rest_low), high, x.rest_high);
  const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(dots, 8), rests);
  const __m512 scale = _mm512_mul_ps(scales, x.scale);
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), scale, sum);
}

/// Partial sums of the rows of a stripe: 16 of each.
using Sums = float[16 * kTileRows];

/// Rows of one tile of q4_0 times N vectors, each of which is summed as if it were alone. Full: the tile is 256 columns
/// wide.
template <bool Full, int N>
static inline void tile_times(const uint8_t* tile, int rows, int groups, const Q8Tile* const* x, bool first, Sums* acc) {
  const uint8_t* scales = tile + kTileHeaderBytes;
  const uint8_t* data = scales + 2 * groups * rows;
  HalfTile left[N], right[N];
  for (int n = 0; n < N; n++) {
    left[n] = half_tile(*x[n], 0);
    right[n] = half_tile(*x[n], 1);
  }
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
    const __m512 left_scales = _mm512_permutexvar_ps(left_lanes, s);
    const __m512 right_scales = _mm512_permutexvar_ps(right_lanes, s);
    const __m512i low_a = low_nibbles(a), high_a = high_nibbles(a);
    const __m512i low_b = low_nibbles(b), high_b = high_nibbles(b);
    for (int n = 0; n < N; n++) {
      __m512 sum = first ? _mm512_setzero_ps() : _mm512_load_ps(acc[n] + 16 * r);
      sum = add_half(sum, low_a, high_a, left[n], left_scales);
      sum = add_half(sum, low_b, high_b, right[n], right_scales);
      _mm512_store_ps(acc[n] + 16 * r, sum);
    }
  }
}

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

static void write_sums(float* acc, int rows, float* out) {
  // Rows beyond the stripe share the last block: their accumulators hold nothing, and are not written.
  for (int r = rows; r % 16; r++) _mm512_store_ps(acc + 16 * r, _mm512_setzero_ps());
  for (int r = 0; r < rows; r += 16) {
    const __mmask16 mask = rows - r >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << (rows - r)) - 1);
    _mm512_mask_storeu_ps(out + r, mask, sum_lanes(acc + 16 * r));
  }
}

/// N vectors, with a class that multiplies tiles.
template <class Tiles, int N>
static void n_vectors(const uint8_t* stripe, int rows, int cols, const void* const* x, float* const* out) {
  alignas(64) Sums acc[N];
  for (int col = 0; col < cols; col += kTileCols) {
    const int width = cols - col < kTileCols ? cols - col : kTileCols;
    const Q8Tile* xs[N];
    for (int n = 0; n < N; n++) xs[n] = static_cast<const Q8Tile*>(x[n]) + col / kTileCols;
    Tiles::template times<N>(stripe, rows, width, xs, col == 0, acc);
    stripe += tile_bytes(Tiles::kDtype, rows, width);
  }
  for (int n = 0; n < N; n++) write_sums(acc[n], rows, out[n]);
}

/// Four at a time, then two, then one.
template <class Tiles>
static void few_vectors(const uint8_t* stripe, int rows, int cols, const void* const* x, int tokens, float* const* out) {
  int n = 0;
  for (; n + 4 <= tokens; n += 4) n_vectors<Tiles, 4>(stripe, rows, cols, x + n, out + n);
  for (; n + 2 <= tokens; n += 2) n_vectors<Tiles, 2>(stripe, rows, cols, x + n, out + n);
  if (n < tokens) n_vectors<Tiles, 1>(stripe, rows, cols, x + n, out + n);
}

struct Q4Tiles {
  static constexpr Dtype kDtype = Dtype::q4_0;
  template <int N>
  static void times(const uint8_t* tile, int rows, int width, const Q8Tile* const* x, bool first, Sums* acc) {
    if (width == kTileCols) tile_times<true, N>(tile, rows, 8, x, first, acc);
    else tile_times<false, N>(tile, rows, ceil_div(width, kGroup), x, first, acc);
  }
};

static void matvecs_q4_0_q8(const uint8_t* stripe, int rows, int cols, const void* const* x, int tokens,
                            float* const* out) {
  few_vectors<Q4Tiles>(stripe, rows, cols, x, tokens, out);
}

static void matvec_q4_0_q8(const uint8_t* stripe, int rows, int cols, const void* x, float* out) {
  matvecs_q4_0_q8(stripe, rows, cols, &x, 1, &out);
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

struct Q8Tiles {
  static constexpr Dtype kDtype = Dtype::q8_0;
  template <int N>
  static void times(const uint8_t* tile, int rows, int width, const Q8Tile* const* x, bool first, Sums* acc) {
    const int groups = ceil_div(width, kGroup);
    const uint8_t* scales = tile + kTileHeaderBytes;
    const uint8_t* data = scales + 2 * groups * rows;
    const auto scale_mask = static_cast<__mmask8>((1u << groups) - 1);
    const __mmask64 last_mask = groups % 2 ? 0xFFFFFFFFull : ~0ull;
    const int pairs = (groups + 1) / 2;
    __m256 x_scales[N];
    for (int n = 0; n < N; n++) x_scales[n] = _mm256_mul_ps(_mm256_load_ps(x[n]->scales), _mm256_set1_ps(1.0f / 256));
    for (int r = 0; r < rows; r++) {
      const uint8_t* row = data + 32 * groups * r;
      fetch_next_tile(data + 32 * groups * rows, r, 34 * groups);
      const __m256 f32 = _mm256_cvtph_ps(_mm_maskz_loadu_epi16(scale_mask, scales + 2 * groups * r));
      for (int n = 0; n < N; n++) {
        const __m512 s = _mm512_castps256_ps512(_mm256_mul_ps(f32, x_scales[n]));
        __m512 sum = first ? _mm512_setzero_ps() : _mm512_load_ps(acc[n] + 16 * r);
        for (int pair = 0; pair < pairs; pair++) {
          const __m512i weights = _mm512_maskz_loadu_epi8(pair + 1 == pairs ? last_mask : ~0ull, row + 64 * pair);
          sum = add_pair(sum, weights, *x[n], pair, s);
        }
        _mm512_store_ps(acc[n] + 16 * r, sum);
      }
    }
  }
};

static void matvecs_q8_0_q8(const uint8_t* stripe, int rows, int cols, const void* const* x, int tokens,
                            float* const* out) {
  few_vectors<Q8Tiles>(stripe, rows, cols, x, tokens, out);
}

static void matvec_q8_0_q8(const uint8_t* stripe, int rows, int cols, const void* x, float* out) {
  matvecs_q8_0_q8(stripe, rows, cols, &x, 1, &out);
}
