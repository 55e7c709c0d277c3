// Quantized matrices times quantized activations, over a trait V with integer dot products of V::kBytes bytes.
//
// A quantized row holds kQ8TileBytes per 256 columns: the int8 activations in the order in which the weights meet them,
// what rounding left of them in the same order, the numbers that integer sums start at, and the scales of the 8 groups.
// For q4_0 a block of kBytes / 16 groups stands as kBytes activations for the low nibbles (the first halves of the
// groups), then kBytes for the high ones.
//
// matvec sums in 256ths of a step: 256 times the int8 activations plus the rests. matmul takes the int8 alone.
//
// Sums start at -8 * (sum of activations) rather than subtracting 8 from each weight; where the dot product takes
// unsigned weights only, those of q8_0 are raised by 128 and sums start at -128 * (sum of activations). Only the sum
// over a group's lanes counts, so that the whole amount stands in the first one.
#pragma once

#include "layout.h"

namespace cflow {
namespace {

constexpr size_t kQ8Rests = 256;             // int8 [256]
constexpr size_t kQ8Starts = 512;            // of matmul: int32 [32] for q4_0, [64] for q8_0
constexpr size_t kQ8FineStarts = 512 + 256;  // of matvec: the same, in 256ths
constexpr size_t kQ8Scales = 512 + 512;      // f32 [8]
constexpr size_t kQ8TileBytes = 1024 + 64;   // a multiple of 64
/// Below this a scale is subnormal, its inverse not a number of f32: such a group counts as zeros.
constexpr float kLeastScale = 1.17549435e-38f;

inline size_t q8_row_bytes_of(int cols) {
  return kQ8TileBytes * static_cast<size_t>((cols + kTileCols - 1) / kTileCols);
}

template <class V>
size_t q8_row_bytes(int cols) {
  return q8_row_bytes_of(cols);
}

/// Quantizes 32 numbers to int8 and, in 256ths of a step, what that left; returns the scale, NaN if one of them is NaN
/// or Inf.
template <class V>
CFLOW_KERNEL float quantize_group(const float* x, int8_t* q, int8_t* rests) {
  constexpr int kVectors = kGroup / V::kWidth;
  typename V::F v[kVectors];
  auto most = V::zero();
  auto check = V::zero();  // 0 * x is NaN for NaN and Inf
  for (int k = 0; k < kVectors; ++k) {
    v[k] = V::load(x + k * V::kWidth);
    most = V::max(most, V::abs(v[k]));
    check = V::fma(v[k], V::zero(), check);
  }
  __builtin_memset(q, 0, kGroup);
  __builtin_memset(rests, 0, kGroup);
  if (V::hsum(check) != 0.0f) return __builtin_nanf("");
  const float amax = V::hmax(most);
  const float scale = amax / 127.0f;
  if (scale < kLeastScale) return 0.0f;
  const auto inverse = V::set1(127.0f / amax);
  for (int k = 0; k < kVectors; ++k) v[k] = V::mul(v[k], inverse);
  V::store_q8_group(q, v);
  for (int k = 0; k < kVectors; ++k) {
    const auto rest = V::mul(V::sub(v[k], V::round(v[k])), V::set1(256.0f));
    // Half a step is 128 of them; within 127 either sign is a byte.
    v[k] = V::max(V::min(rest, V::set1(127.0f)), V::set1(-127.0f));
  }
  V::store_q8_group(rests, v);
  return scale;
}

/// Puts the activations of group g of a tile where the weights meet them.
template <class V>
CFLOW_KERNEL void place_group(Dtype weights, const int8_t* q, int g, uint8_t* tile) {
  constexpr int kBlockGroups = V::kBytes / 16;
  if (weights == Dtype::q4_0) {
    uint8_t* low = tile + g / kBlockGroups * 2 * V::kBytes + g % kBlockGroups * 16;
    __builtin_memcpy(low, q, 16);
    __builtin_memcpy(low + V::kBytes, q + 16, 16);
  } else {
    __builtin_memcpy(tile + kGroup * g, q, kGroup);
  }
}

CFLOW_KERNEL int32_t sum_of_group(const int8_t* q) {
  int32_t sum = 0;
  for (int i = 0; i < kGroup; ++i) sum += q[i];
  return sum;
}

template <class V>
void quantize_row(Dtype weights, const float* x, int cols, uint8_t* row) {
  __builtin_memset(row, 0, q8_row_bytes_of(cols));
  for (int c = 0; c < cols; c += kGroup) {
    uint8_t* tile = row + kQ8TileBytes * static_cast<size_t>(c / kTileCols);
    const int g = c % kTileCols / kGroup;
    alignas(64) float last[kGroup];
    const float* values = x + c;
    if (cols - c < kGroup) {
      __builtin_memset(last, 0, sizeof last);
      __builtin_memcpy(last, values, sizeof(float) * static_cast<size_t>(cols - c));
      values = last;
    }
    alignas(64) int8_t q[kGroup];
    alignas(64) int8_t rests[kGroup];
    const float scale = quantize_group<V>(values, q, rests);
    place_group<V>(weights, q, g, tile);
    place_group<V>(weights, rests, g, tile + kQ8Rests);
    const int bias = weights == Dtype::q4_0 ? 8 : V::kQ8Bias;
    const int32_t start = -bias * sum_of_group(q);
    const int32_t fine_start = 256 * start - bias * sum_of_group(rests);
    const int lane = weights == Dtype::q4_0 ? 4 * g : 8 * g;
    __builtin_memcpy(tile + kQ8Starts + 4 * lane, &start, sizeof start);
    __builtin_memcpy(tile + kQ8FineStarts + 4 * lane, &fine_start, sizeof fine_start);
    __builtin_memcpy(tile + kQ8Scales + 4 * g, &scale, sizeof scale);
  }
}

/// Row data of a tile in bytes when all 8 groups are there.
template <Dtype D>
constexpr int kFullRow = D == Dtype::q4_0 ? 16 * kTileGroups : 32 * kTileGroups;

/// One row of a tile: its scales and where its data stand. Rows of ragged tiles are copied, missing groups zero.
template <class V, Dtype D>
struct WeightRow {
  alignas(64) uint8_t copy[kFullRow<D>];
  const uint8_t* data;
  typename V::S scales;

  CFLOW_KERNEL WeightRow(const TileView& tile, int row) {
    scales = load_row_scales<V>(tile, row);
    data = row_data(tile, row);
    if (__builtin_expect(tile.groups == kTileGroups, 1)) return;
    __builtin_memset(copy, 0, sizeof copy);
    __builtin_memcpy(copy, data, tile.row_bytes);
    data = copy;
  }
};

template <class V, Dtype D>
constexpr int kBlocks = kFullRow<D> / V::kBytes;

/// V::kBytes bytes of weights, unpacked.
template <class V, Dtype D>
struct WeightBlock {
  typename V::B low, high;  // q8_0: low alone

  CFLOW_KERNEL explicit WeightBlock(const uint8_t* data) {
    const auto bytes = V::load_bytes(data);
    if constexpr (D == Dtype::q4_0) {
      low = V::low_nibbles(bytes);
      high = V::high_nibbles(bytes);
    } else {
      low = bytes;
    }
  }
};

/// What a block of int8 activations needs for a dot product.
template <class V, Dtype D>
struct ActivationBlock {
  typename V::B low, high;
  typename V::I start;

  CFLOW_KERNEL void load(const uint8_t* tile, int block) {
    if constexpr (D == Dtype::q4_0) {
      low = V::load_bytes(tile + block * 2 * V::kBytes);
      high = V::load_bytes(tile + block * 2 * V::kBytes + V::kBytes);
      start = V::load_ints(tile + kQ8Starts + block * V::kBytes);
    } else {
      low = V::load_bytes(tile + block * V::kBytes);
      if constexpr (V::kQ8Bias != 0) start = V::load_ints(tile + kQ8Starts + block * V::kBytes);
    }
  }

  CFLOW_KERNEL typename V::F dot(const WeightBlock<V, D>& w) const {
    if constexpr (D == Dtype::q4_0) return V::to_float(V::dot_q4(w.low, w.high, low, high, start));
    if constexpr (D == Dtype::q8_0) return V::to_float(V::dot_q8(w.low, low, start));
  }
};

/// What a block of activations with rests needs for a dot product, whose sums are 256ths.
template <class V, Dtype D>
struct FineBlock {
  typename V::B low, high, rest_low, rest_high;
  typename V::I start;

  CFLOW_KERNEL void load(const uint8_t* tile, int block) {
    if constexpr (D == Dtype::q4_0) {
      const uint8_t* at = tile + block * 2 * V::kBytes;
      low = V::load_bytes(at);
      high = V::load_bytes(at + V::kBytes);
      rest_low = V::load_bytes(at + kQ8Rests);
      rest_high = V::load_bytes(at + kQ8Rests + V::kBytes);
      start = V::load_ints(tile + kQ8FineStarts + block * V::kBytes);
    } else {
      low = V::load_bytes(tile + block * V::kBytes);
      rest_low = V::load_bytes(tile + kQ8Rests + block * V::kBytes);
      if constexpr (V::kQ8Bias != 0) start = V::load_ints(tile + kQ8FineStarts + block * V::kBytes);
    }
  }

  CFLOW_KERNEL typename V::F dot(const WeightBlock<V, D>& w) const {
    if constexpr (D == Dtype::q4_0) {
      return V::to_float(V::fine_dot_q4(w.low, w.high, low, high, rest_low, rest_high, start));
    }
    if constexpr (D == Dtype::q8_0) return V::to_float(V::fine_dot_q8(w.low, low, rest_low, start));
  }
};

/// Scale of each lane of a block.
template <class V, Dtype D, int Block>
CFLOW_KERNEL typename V::F lane_scales(typename V::S scales) {
  if constexpr (D == Dtype::q4_0) return V::template expand4<Block>(scales);
  if constexpr (D == Dtype::q8_0) return V::template expand8<Block>(scales);
}

/// The activations of one tile, held in registers as far as they go.
template <class V, Dtype D>
struct ActivationTile {
  FineBlock<V, D> blocks[kBlocks<V, D>];
  typename V::S scales;  // of a 256th

  CFLOW_KERNEL explicit ActivationTile(const uint8_t* tile) {
    for (int b = 0; b < kBlocks<V, D>; ++b) blocks[b].load(tile, b);
    alignas(64) float steps[kTileGroups];
    __builtin_memcpy(steps, tile + kQ8Scales, sizeof steps);
    for (float& step : steps) step *= 1.0f / 256;
    scales = V::load_floats8(reinterpret_cast<const uint8_t*>(steps));
  }
};

template <class V, Dtype D, int Block = 0>
CFLOW_KERNEL typename V::F row_times_tile(const uint8_t* data, typename V::S scales, const ActivationTile<V, D>& x,
                                          typename V::F acc) {
  if constexpr (Block < kBlocks<V, D>) {
    const WeightBlock<V, D> w(data + Block * V::kBytes);
    acc = V::fma(x.blocks[Block].dot(w), lane_scales<V, D, Block>(scales), acc);
    return row_times_tile<V, D, Block + 1>(data, scales, x, acc);
  } else {
    return acc;
  }
}

/// Vectors that a tile of weights meets before the next tile: their sums leave the tile room in L1.
constexpr int kFewVectors = 4;

/// Up to kFewVectors vectors. Each is summed as if it were alone.
template <class V, Dtype D>
void few_matvecs_q8(const uint8_t* stripe, int rows, int cols, const void* const* x, int tokens, float* const* out) {
  typename V::F sums[kFewVectors][kTileRows];
  for (int t = 0; t < tokens; ++t) {
    for (int r = 0; r < rows; ++r) sums[t][r] = V::zero();
  }
  for (int c = 0; c < cols; c += kTileCols) {
    const TileView tile = tile_at<D>(stripe, rows, cols - c);
    for (int t = 0; t < tokens; ++t) {
      const ActivationTile<V, D> xs(static_cast<const uint8_t*>(x[t]) + kQ8TileBytes * static_cast<size_t>(c / kTileCols));
      for (int r = 0; r < rows; ++r) {
        if (t == 0) prefetch_next_tile(stripe, tile, r, 1);
        const WeightRow<V, D> w(tile, r);
        sums[t][r] = row_times_tile<V, D>(w.data, V::mul_scales(w.scales, xs.scales), xs, sums[t][r]);
      }
    }
    stripe += tile.bytes;
  }
  for (int t = 0; t < tokens; ++t) {
    for (int r = 0; r < rows; ++r) out[t][r] = V::hsum(sums[t][r]);
  }
}

template <class V, Dtype D>
void matvec_q8(const uint8_t* stripe, int rows, int cols, const void* x, float* out) {
  few_matvecs_q8<V, D>(stripe, rows, cols, &x, 1, &out);
}

template <class V, Dtype D>
void matvecs_q8(const uint8_t* stripe, int rows, int cols, const void* const* x, int tokens, float* const* out) {
  for (int t = 0; t < tokens; t += kFewVectors) {
    few_matvecs_q8<V, D>(stripe, rows, cols, x + t, tokens - t < kFewVectors ? tokens - t : kFewVectors, out + t);
  }
}

/// One block of one row against the same block of T tokens.
template <class V, Dtype D, int T, int Block = 0>
CFLOW_KERNEL void row_times_tokens(const uint8_t* data, const typename V::S* scales, const uint8_t* const* x,
                                   size_t at, typename V::F* acc) {
  if constexpr (Block < kBlocks<V, D>) {
    const WeightBlock<V, D> w(data + Block * V::kBytes);
    for (int t = 0; t < T; ++t) {
      ActivationBlock<V, D> block;
      block.load(x[t] + at, Block);
      acc[t] = V::fma(block.dot(w), lane_scales<V, D, Block>(scales[t]), acc[t]);
    }
    row_times_tokens<V, D, T, Block + 1>(data, scales, x, at, acc);
  }
}

/// T tokens, whose sums stay in registers over all tiles of a row; their activations stay in L1 over all rows.
template <class V, Dtype D, int T>
void matmul_q8_tokens(const uint8_t* stripe, int rows, int cols, const uint8_t* const* x, float* const* out) {
  for (int r = 0; r < rows; ++r) {
    typename V::F acc[T];
    for (auto& a : acc) a = V::zero();
    const uint8_t* p = stripe;
    for (int c = 0; c < cols; c += kTileCols) {
      const TileView tile = tile_at<D>(p, rows, cols - c);
      const size_t at = kQ8TileBytes * static_cast<size_t>(c / kTileCols);
      const WeightRow<V, D> w(tile, r);
      typename V::S scales[T];
      for (int t = 0; t < T; ++t) scales[t] = V::mul_scales(w.scales, V::load_floats8(x[t] + at + kQ8Scales));
      row_times_tokens<V, D, T>(w.data, scales, x, at, acc);
      p += tile.bytes;
    }
    for (int t = 0; t < T; ++t) out[t][r] = V::hsum(acc[t]);
  }
}

/// Blocks of T tokens, then of T / 2, down to single ones.
template <class V, Dtype D, int T>
void matmul_q8_blocks(const uint8_t* stripe, int rows, int cols, const void* const* x, int tokens, float* const* out) {
  int t = 0;
  for (; t + T <= tokens; t += T) {
    const uint8_t* xs[T];
    for (int k = 0; k < T; ++k) xs[k] = static_cast<const uint8_t*>(x[t + k]);
    matmul_q8_tokens<V, D, T>(stripe, rows, cols, xs, out + t);
  }
  if constexpr (T > 1) matmul_q8_blocks<V, D, T / 2>(stripe, rows, cols, x + t, tokens - t, out + t);
}

template <class V, Dtype D>
void matmul_q8(const uint8_t* stripe, int rows, int cols, const void* const* x, int tokens, float* const* out) {
  matmul_q8_blocks<V, D, V::kTokensQ8>(stripe, rows, cols, x, tokens, out);
}

}  // namespace
}  // namespace cflow
