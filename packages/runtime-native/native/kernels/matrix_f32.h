// Matrices times f32 activations, over a trait V: rows are dequantized four at a time, one tile wide, into a buffer
// that stays in L1, and multiplied with several tokens at once. Every sum runs over the columns in the same order
// whatever the number of tokens, so that matvec and matmul agree to the bit.
#pragma once

#include "layout.h"

namespace cflow {
namespace {

constexpr int kRowBlock = 4;
constexpr int kTokenBlock = 64;

/// A tile row as f32: out[0 .. next multiple of 32 of tile.cols), zero beyond tile.cols if they are not padded on disk.
template <class V, Dtype D>
CFLOW_KERNEL void dequantize_tile_row(const TileView& tile, int row, float* out) {
  constexpr int kVectors = kGroup / V::kWidth;
  const uint8_t* data = row_data(tile, row);
  if constexpr (D == Dtype::q4_0 || D == Dtype::q8_0) {
    alignas(64) float scales[kTileGroups];
    V::store_scales(scales, load_row_scales<V>(tile, row));
    for (int g = 0; g < tile.groups; ++g) {
      typename V::F w[kVectors];
      if constexpr (D == Dtype::q4_0) V::load_q4_group(data + 16 * g, w);
      if constexpr (D == Dtype::q8_0) V::load_q8_group(data + 32 * g, w);
      const auto scale = V::set1(scales[g]);
      for (int k = 0; k < kVectors; ++k) V::store(out + kGroup * g + k * V::kWidth, V::mul(w[k], scale));
    }
  } else {
    constexpr int kBytes = D == Dtype::f16 ? 2 : 4;
    int c = 0;
    for (; c + V::kWidth <= tile.cols; c += V::kWidth) {
      if constexpr (D == Dtype::f16) V::store(out + c, V::load_f16(data + kBytes * c));
      if constexpr (D == Dtype::f32) V::store(out + c, V::load(reinterpret_cast<const float*>(data + kBytes * c)));
    }
    for (; c % kGroup || c < tile.cols; c += V::kWidth) {
      const int n = tile.cols > c ? tile.cols - c : 0;
      alignas(64) uint8_t rest[kBytes * V::kWidth] = {};
      __builtin_memcpy(rest, data + kBytes * c, static_cast<size_t>(kBytes * n));
      if constexpr (D == Dtype::f16) V::store(out + c, V::load_f16(rest));
      if constexpr (D == Dtype::f32) V::store(out + c, V::load(reinterpret_cast<const float*>(rest)));
    }
  }
}

/// Rows [row, row + kRowBlock) of a tile; those from `rows` on become zeros.
template <class V, Dtype D>
CFLOW_KERNEL void dequantize_rows(const TileView& tile, int row, int rows, float (*w)[kTileCols]) {
  for (int r = 0; r < kRowBlock; ++r) {
    if (row + r < rows) {
      dequantize_tile_row<V, D>(tile, row + r, w[r]);
    } else {
      __builtin_memset(w[r], 0, sizeof w[r]);
    }
  }
}

/// sums[t][r] += w[r] . x[t] in vector lanes, for T tokens. n: columns, rounded up to a multiple of 32.
template <class V, int T>
CFLOW_KERNEL void multiply_rows(const float (*w)[kTileCols], const float* const* x, int n,
                                typename V::F (*sums)[kRowBlock]) {
  typename V::F acc[T][kRowBlock];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < kRowBlock; ++r) acc[t][r] = sums[t][r];
  }
  for (int c = 0; c < n; c += V::kWidth) {
    typename V::F wc[kRowBlock];
    for (int r = 0; r < kRowBlock; ++r) wc[r] = V::load(w[r] + c);
    for (int t = 0; t < T; ++t) {
      const auto xc = V::load(x[t] + c);
      for (int r = 0; r < kRowBlock; ++r) acc[t][r] = V::fma(wc[r], xc, acc[t][r]);
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < kRowBlock; ++r) sums[t][r] = acc[t][r];
  }
}

CFLOW_KERNEL int padded(int cols) { return (cols + kGroup - 1) / kGroup * kGroup; }

template <class V, Dtype D>
void matvec_f32(const uint8_t* stripe, int rows, int cols, const void* x, float* out) {
  alignas(64) float w[kRowBlock][kTileCols];
  typename V::F sums[kTileRows / kRowBlock][1][kRowBlock];
  for (auto& block : sums) {
    for (auto& sum : block[0]) sum = V::zero();
  }
  for (int c = 0; c < cols; c += kTileCols) {
    const TileView tile = tile_at<D>(stripe, rows, cols - c);
    const float* xc = static_cast<const float*>(x) + c;
    for (int r = 0; r < rows; r += kRowBlock) {
      dequantize_rows<V, D>(tile, r, rows, w);
      multiply_rows<V, 1>(w, &xc, padded(tile.cols), sums[r / kRowBlock]);
    }
    stripe += tile.bytes;
  }
  for (int r = 0; r < rows; ++r) out[r] = V::hsum(sums[r / kRowBlock][0][r % kRowBlock]);
}

/// Four rows of the stripe for at most kTokenBlock tokens.
template <class V, Dtype D>
void matmul_f32_rows(const uint8_t* stripe, int rows, int cols, int row, const void* const* x, int tokens,
                     float* const* out) {
  constexpr int kTokens = V::kTokensF32;
  alignas(64) float w[kRowBlock][kTileCols];
  typename V::F sums[kTokenBlock][kRowBlock];
  for (int t = 0; t < tokens; ++t) {
    for (auto& sum : sums[t]) sum = V::zero();
  }
  const float* xc[kTokenBlock];
  for (int c = 0; c < cols; c += kTileCols) {
    const TileView tile = tile_at<D>(stripe, rows, cols - c);
    dequantize_rows<V, D>(tile, row, rows, w);
    for (int t = 0; t < tokens; ++t) xc[t] = static_cast<const float*>(x[t]) + c;
    int t = 0;
    for (; t + kTokens <= tokens; t += kTokens) multiply_rows<V, kTokens>(w, xc + t, padded(tile.cols), sums + t);
    for (; t < tokens; ++t) multiply_rows<V, 1>(w, xc + t, padded(tile.cols), sums + t);
    stripe += tile.bytes;
  }
  for (int t = 0; t < tokens; ++t) {
    for (int r = 0; r < kRowBlock && row + r < rows; ++r) out[t][row + r] = V::hsum(sums[t][r]);
  }
}

template <class V, Dtype D>
void matmul_f32(const uint8_t* stripe, int rows, int cols, const void* const* x, int tokens, float* const* out) {
  for (int t = 0; t < tokens; t += kTokenBlock) {
    const int n = tokens - t < kTokenBlock ? tokens - t : kTokenBlock;
    for (int r = 0; r < rows; r += kRowBlock) matmul_f32_rows<V, D>(stripe, rows, cols, r, x + t, n, out + t);
  }
}

template <class V, Dtype D>
void dequantize_row(const uint8_t* stripe, int rows, int cols, int row, float* out) {
  alignas(64) float w[kTileCols];
  for (int c = 0; c < cols; c += kTileCols) {
    const TileView tile = tile_at<D>(stripe, rows, cols - c);
    dequantize_tile_row<V, D>(tile, row, w);
    __builtin_memcpy(out + c, w, sizeof(float) * static_cast<size_t>(tile.cols));
    stripe += tile.bytes;
  }
}

}  // namespace
}  // namespace cflow
