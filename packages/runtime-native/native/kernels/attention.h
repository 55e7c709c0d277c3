// Attention over one page of one kv head, over a trait V. Keys stand transposed, 16 positions to a row, so that scores
// need no horizontal sum; several queries share every load of a key or a value.
#pragma once

#include "layout.h"

namespace cflow {
namespace {

template <CacheType C>
constexpr int kCacheBytes = C == CacheType::f16 ? 2 : 4;

template <class V, CacheType C>
CFLOW_KERNEL typename V::F load_cached(const uint8_t* p) {
  if constexpr (C == CacheType::f16) return V::load_f16(p);
  if constexpr (C == CacheType::f32) return V::load(reinterpret_cast<const float*>(p));
}

/// Converts n <= kPage numbers to what the cache holds.
template <CacheType C, class Convert>
CFLOW_KERNEL void store_cached(const float* x, int n, size_t stride, uint8_t* out, Convert convert) {
  if constexpr (C == CacheType::f32) {
    for (int i = 0; i < n; ++i) __builtin_memcpy(out + stride * static_cast<size_t>(i), x + i, sizeof(float));
  } else {
    uint16_t bits[kPage];
    convert(x, static_cast<size_t>(n), bits);
    for (int i = 0; i < n; ++i) __builtin_memcpy(out + stride * static_cast<size_t>(i), bits + i, sizeof(uint16_t));
  }
}

/// Convert: f32_to_f16 of the unit.
template <CacheType C, auto Convert>
void store_key(const float* key, int dim, int slot, void* key_page) {
  constexpr size_t kStride = kCacheBytes<C> * kKeyLanes;
  uint8_t* out = static_cast<uint8_t*>(key_page) + kStride * static_cast<size_t>(slot / kKeyLanes * dim) +
                 kCacheBytes<C> * (slot % kKeyLanes);
  for (int d = 0; d < dim; d += kPage) {
    store_cached<C>(key + d, dim - d < kPage ? dim - d : kPage, kStride, out + kStride * static_cast<size_t>(d),
                    Convert);
  }
}

template <CacheType C, auto Convert>
void store_value(const float* value, int dim, int slot, void* value_page) {
  constexpr size_t kStride = kCacheBytes<C>;
  uint8_t* out = static_cast<uint8_t*>(value_page) + kStride * static_cast<size_t>(slot * dim);
  for (int d = 0; d < dim; d += kPage) {
    store_cached<C>(value + d, dim - d < kPage ? dim - d : kPage, kStride, out + kStride * static_cast<size_t>(d),
                    Convert);
  }
}

/// M queries against B consecutive sixteens of keys.
template <class V, CacheType C, int M, int B>
CFLOW_KERNEL void score_block(const float* const* q, const uint8_t* keys, int dim, float scale, float* scores,
                              size_t stride) {
  constexpr int kVectors = kKeyLanes / V::kWidth;
  const size_t block_bytes = static_cast<size_t>(kCacheBytes<C> * kKeyLanes * dim);
  typename V::F acc[M][B][kVectors];
  for (auto& query : acc) {
    for (auto& block : query) {
      for (auto& a : block) a = V::zero();
    }
  }
  for (int d = 0; d < dim; ++d) {
    typename V::F qd[M];
    for (int m = 0; m < M; ++m) qd[m] = V::set1(q[m][d]);
    for (int b = 0; b < B; ++b) {
      const uint8_t* row = keys + static_cast<size_t>(b) * block_bytes + kCacheBytes<C> * kKeyLanes * d;
      for (int k = 0; k < kVectors; ++k) {
        const auto key = load_cached<V, C>(row + kCacheBytes<C> * k * V::kWidth);
        for (int m = 0; m < M; ++m) acc[m][b][k] = V::fma(qd[m], key, acc[m][b][k]);
      }
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int b = 0; b < B; ++b) {
      for (int k = 0; k < kVectors; ++k) {
        V::store(scores + static_cast<size_t>(m) * stride + b * kKeyLanes + k * V::kWidth,
                 V::mul(acc[m][b][k], V::set1(scale)));
      }
    }
  }
}

/// M queries against the whole page: as many sixteens at once as keep 8 sums going.
template <class V, CacheType C, int M>
CFLOW_KERNEL void score_queries(const float* const* q, const uint8_t* keys, int dim, int count, float scale,
                                float* scores, size_t stride) {
  constexpr int kAtOnce = 8 / M * V::kWidth / kKeyLanes;
  constexpr int kMany = kAtOnce < 1 ? 1 : kAtOnce > kPage / kKeyLanes ? kPage / kKeyLanes : kAtOnce;
  const size_t block_bytes = static_cast<size_t>(kCacheBytes<C> * kKeyLanes * dim);
  const int blocks = (count + kKeyLanes - 1) / kKeyLanes;
  int b = 0;
  for (; b + kMany <= blocks; b += kMany) {
    score_block<V, C, M, kMany>(q, keys + static_cast<size_t>(b) * block_bytes, dim, scale, scores + b * kKeyLanes,
                                stride);
  }
  for (; b < blocks; ++b) {
    score_block<V, C, M, 1>(q, keys + static_cast<size_t>(b) * block_bytes, dim, scale, scores + b * kKeyLanes, stride);
  }
}

template <class V, CacheType C>
void scores(const float* const* q, int m, const void* key_page, int dim, int count, float scale, float* scores,
            size_t stride) {
  const auto* keys = static_cast<const uint8_t*>(key_page);
  int i = 0;
  for (; i + 4 <= m; i += 4) {
    score_queries<V, C, 4>(q + i, keys, dim, count, scale, scores + static_cast<size_t>(i) * stride, stride);
  }
  for (; i < m; ++i) {
    score_queries<V, C, 1>(q + i, keys, dim, count, scale, scores + static_cast<size_t>(i) * stride, stride);
  }
}

/// D vectors of the outputs of M queries.
template <class V, CacheType C, int M, int D>
CFLOW_KERNEL void mix_block(const float* p, size_t stride, const uint8_t* values, size_t row_bytes, int first, int end,
                            float* const* out, int d) {
  typename V::F acc[M][D];
  for (int m = 0; m < M; ++m) {
    for (int k = 0; k < D; ++k) acc[m][k] = V::load(out[m] + d + k * V::kWidth);
  }
  const uint8_t* row = values + static_cast<size_t>(first) * row_bytes + static_cast<size_t>(kCacheBytes<C> * d);
  for (int j = first; j < end; ++j, row += row_bytes) {
    typename V::F v[D];
    for (int k = 0; k < D; ++k) v[k] = load_cached<V, C>(row + kCacheBytes<C> * k * V::kWidth);
    for (int m = 0; m < M; ++m) {
      const auto weight = V::set1(p[static_cast<size_t>(m) * stride + static_cast<size_t>(j)]);
      for (int k = 0; k < D; ++k) acc[m][k] = V::fma(weight, v[k], acc[m][k]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int k = 0; k < D; ++k) V::store(out[m] + d + k * V::kWidth, acc[m][k]);
  }
}

/// The last dim % V::kWidth elements: the same sums over copies.
template <class V, CacheType C, int M>
void mix_rest(const float* p, size_t stride, const uint8_t* values, size_t row_bytes, int first, int end,
              float* const* out, int d, int n) {
  typename V::F acc[M];
  for (int m = 0; m < M; ++m) acc[m] = V::load_n(out[m] + d, n);
  for (int j = first; j < end; ++j) {
    alignas(64) uint8_t copy[kCacheBytes<C> * V::kWidth] = {};
    __builtin_memcpy(copy, values + static_cast<size_t>(j) * row_bytes + static_cast<size_t>(kCacheBytes<C> * d),
                     static_cast<size_t>(kCacheBytes<C> * n));
    const auto v = load_cached<V, C>(copy);
    for (int m = 0; m < M; ++m) {
      acc[m] = V::fma(V::set1(p[static_cast<size_t>(m) * stride + static_cast<size_t>(j)]), v, acc[m]);
    }
  }
  for (int m = 0; m < M; ++m) V::store_n(out[m] + d, acc[m], n);
}

template <class V, CacheType C, int M>
CFLOW_KERNEL void mix_queries(const float* p, size_t stride, const uint8_t* values, int dim, int first, int end,
                              float* const* out) {
  constexpr int kMany = M == 1 ? 4 : 2;
  const size_t row_bytes = static_cast<size_t>(kCacheBytes<C> * dim);
  int d = 0;
  for (; d + kMany * V::kWidth <= dim; d += kMany * V::kWidth) {
    mix_block<V, C, M, kMany>(p, stride, values, row_bytes, first, end, out, d);
  }
  for (; d + V::kWidth <= dim; d += V::kWidth) {
    mix_block<V, C, M, 1>(p, stride, values, row_bytes, first, end, out, d);
  }
  if (d < dim) mix_rest<V, C, M>(p, stride, values, row_bytes, first, end, out, d, dim - d);
}

template <class V, CacheType C>
void mix(const float* p, size_t stride, int m, const void* value_page, int dim, int first, int end, float* const* out) {
  const auto* values = static_cast<const uint8_t*>(value_page);
  int i = 0;
  for (; i + 4 <= m; i += 4) {
    mix_queries<V, C, 4>(p + static_cast<size_t>(i) * stride, stride, values, dim, first, end, out + i);
  }
  for (; i < m; ++i) {
    mix_queries<V, C, 1>(p + static_cast<size_t>(i) * stride, stride, values, dim, first, end, out + i);
  }
}

}  // namespace
}  // namespace cflow
