// Many vectors at a time with AVX-512 VNNI: sixteen rows side by side, unpacked once for all vectors.

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

/// Prefetches weights some panels ahead into L2, since activations fill L1. Measured against a prefetch of 4 KiB into
/// L1: 8 vectors 151 to 203 GOP/s, 64 vectors 310 to 327.
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

/// The f16 scales of 16 rows as [row][8], rows 4 i to 4 i + 3 in v[i]; zero beyond row and matrix.
static inline void load_scales(const uint8_t* scales, int groups, int rows, __m512i v[4]) {
  for (int i = 0; i < 4; i++) fetch_ahead(scales + 64 * i);
  alignas(64) uint8_t padded[16][16];
  if (groups < 8) {
    const auto mask = static_cast<__mmask8>((1u << groups) - 1);
    for (int i = 0; i < 16; i++) {
      const __m128i row = _mm_maskz_loadu_epi16(i < rows ? mask : 0, scales + 2 * groups * i);
      _mm_store_si128(reinterpret_cast<__m128i*>(padded[i]), row);
    }
    scales = padded[0];
    rows = 16;
  }
  for (int i = 0; i < 4; i++) {
    const int left = rows - 4 * i;
    const __mmask8 mask = left >= 4 ? 0xFF : left <= 0 ? 0 : static_cast<__mmask8>((1u << (2 * left)) - 1);
    v[i] = _mm512_maskz_loadu_epi64(mask, scales + 64 * i);
  }
}

/// From rows to groups: words of eight rows are gathered by group, then joined with those of the other eight.
static void unpack_scales(const uint8_t* scales, int groups, int rows, Panel& panel) {
  __m512i v[4];
  load_scales(scales, groups, rows, v);
  // Word 8 g + r of the result is word 8 r + g of a pair of vectors; the second four groups are 4 words further.
  const __m512i first = _mm512_set_epi16(59, 51, 43, 35, 27, 19, 11, 3, 58, 50, 42, 34, 26, 18, 10, 2,  //
                                         57, 49, 41, 33, 25, 17, 9, 1, 56, 48, 40, 32, 24, 16, 8, 0);
  for (int g = 0; g < 8; g += 4) {
    const __m512i index = _mm512_add_epi16(first, _mm512_set1_epi16(static_cast<short>(g)));
    const __m512i a = _mm512_permutex2var_epi16(v[0], index, v[1]);
    const __m512i b = _mm512_permutex2var_epi16(v[2], index, v[3]);
    const __m512i low = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), b);
    const __m512i high = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), b);
    _mm512_store_ps(panel.scales[g], _mm512_cvtph_ps(_mm512_castsi512_si256(low)));
    _mm512_store_ps(panel.scales[g + 1], _mm512_cvtph_ps(_mm512_extracti64x4_epi64(low, 1)));
    _mm512_store_ps(panel.scales[g + 2], _mm512_cvtph_ps(_mm512_castsi512_si256(high)));
    _mm512_store_ps(panel.scales[g + 3], _mm512_cvtph_ps(_mm512_extracti64x4_epi64(high, 1)));
  }
}

/// Adds (or, of the first tile, sets) 16 rows times N vectors: acc[n * stride + row].
template <Dtype D, int N>
static inline void panel_times(const Panel& panel, int groups, const Q8Tile* const* x, int tile, bool first,
                               float* acc) {
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
constexpr int kBlock = 128;

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

/// Brings a tile of the vectors into the second cache, a share of them with each panel of the tile before: it does not
/// hold all of a prompt's. Measured on experts of 2,048 x 1,024, 512 tokens: up 5.66 to 5.40 s, down 3.28 to 2.92 s.
static inline void fetch_vectors(const Q8Tile* const* x, int tokens, int tile, int panel) {
  constexpr int kPanels = kTileRows / 16;
  for (int n = panel; n < tokens; n += kPanels) {
    const auto* next = reinterpret_cast<const uint8_t*>(x[n] + tile);
    for (int line = 0; line < 4; line++) __builtin_prefetch(next + 64 * line, 0, 2);
    __builtin_prefetch(next + offsetof(Q8Tile, scales), 0, 2);
  }
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
      if (col + kTileCols < cols) fetch_vectors(x, tokens, col / kTileCols + 1, row / 16);
      panel_times_all<D>(panel, groups, x, tokens, col / kTileCols, col == 0, acc + row);
    }
    stripe += tile_bytes(D, rows, width);
  }
  const size_t bytes = sizeof(float) * static_cast<size_t>(rows);
  for (int n = 0; n < tokens; n++) __builtin_memcpy(out[n], acc + n * kTileRows, bytes);
}

template <Dtype D>
static void vnni_matmul_q8(const uint8_t* stripe, int rows, int cols, const void* const* x, int tokens,
                           float* const* out) {
  const auto* vectors = reinterpret_cast<const Q8Tile* const*>(x);
  for (int n = 0; n < tokens; n += kBlock) {
    matmul_block<D>(stripe, rows, cols, vectors + n, tokens - n < kBlock ? tokens - n : kBlock, out + n);
  }
}
