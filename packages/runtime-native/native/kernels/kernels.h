// The kernel table: what every instruction set provides, as function pointers chosen once at load (`select_kernels`).
//
// Contract for all of them:
// - Unaligned pointers are legal for weights (they lie in a mapped file); activation buffers are 64-byte aligned.
// - f32 vectors of n elements that a matrix kernel reads as activations are readable up to the next multiple of 32, and
//   zero there. Nothing is written past what is stated. Weights are never read past their stripe.
// - NaN and Inf propagate: they are never turned into numbers, and never crash.
// - Results depend on the instruction set only: not on threads, nor on how work is split into calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tile.h"

namespace cflow {

/// f32 activations: exact, the parity mode. q8: integer activations in groups of 32, each with an f32 scale (amax /
/// 127). One vector at a time is bound by memory, which leaves time for 15 bits of them: an int8 and, in 256ths of its
/// step, what rounding left. Many vectors at a time are bound by multiplying, and take the int8 alone. On a small
/// trained model the most probable token is the same as in f32 at 99.95 % of the positions with 15 bits, 98.4 % with 8.
enum class Arithmetic : uint8_t { f32 = 0, q8 = 1 };

enum class Activation : uint8_t { gelu = 0, gelu_tanh = 1, silu = 2 };
constexpr int kActivationCount = 3;

/// Storage type of the KV cache.
enum class CacheType : uint8_t { f32 = 0, f16 = 1 };
constexpr int kCacheTypeCount = 2;

/// Positions of one page of a key/value cache, per head: keys are stored [kPage / 16][dim][16], so that 16 scores come
/// out of one pass without a horizontal sum; values [kPage][dim].
constexpr int kPage = 64;
constexpr int kKeyLanes = 16;

/// What the rows of a stripe are multiplied with: f32 vectors, or rows made by `quantize_row`.
using MatvecFn = void (*)(const uint8_t* stripe, int rows, int cols, const void* x, float* out);
using MatmulFn = void (*)(const uint8_t* stripe, int rows, int cols, const void* const* x, int tokens,
                          float* const* out);

struct Kernels {
  const char* isa;

  // --- Matrices. `x` is const float* for Arithmetic::f32 and a row of `quantize_row` for q8. -------------------------

  /// out[r] = sum over c of W[r, c] * x[c], r < rows <= 128: one output stripe, all its column tiles.
  /// [arithmetic][dtype]; the q8 entries of f16 and f32 tiles are null: such tiles always take f32 activations.
  MatvecFn matvec[2][kDtypeCount];

  /// The same for `tokens` vectors (any number >= 1), each with the bits that matvec gives it; weights pass the memory once.
  MatmulFn matvecs[2][kDtypeCount];

  /// out[t][r] = sum over c of W[r, c] * x[t][c] for t < tokens (any number >= 1): the same stripe, many vectors.
  /// Vectors and outputs are given one by one, so that experts need no gather. Any number of tokens is legal.
  MatmulFn matmul[2][kDtypeCount];

  /// Bytes of a quantized row of `cols` activations, a multiple of 64. Its layout is private to the instruction set.
  size_t (*q8_row_bytes)(int cols);
  /// Quantizes x[0..cols) for tiles of `weights` (q4_0 or q8_0): per group of 32, scale = amax / 127, q = round(x /
  /// scale), rest = round(256 (x / scale - q)) within 127 of either sign. matvec computes with scale * (q + rest / 256),
  /// and so does matvecs; matmul with scale * q. A group with NaN or Inf gets scale NaN, so that it reaches the logits; one whose scale is
  /// subnormal counts as zeros.
  void (*quantize_row)(Dtype weights, const float* x, int cols, uint8_t* row);

  /// One row of a tiled matrix, dequantized: out[c] = W[row, c], c < cols; row < rows of the stripe. (Embedding.)
  void (*dequantize_row[kDtypeCount])(const uint8_t* stripe, int rows, int cols, int row, float* out);

  /// sum of a[i] * b[i], f32; both unaligned, neither padded. (Router rows.)
  float (*dot)(const float* a, const float* b, size_t n);

  // --- Elementwise. -------------------------------------------------------------------------------------------------

  /// out = x / sqrt(mean(x^2) + eps) * weight; weight null = ones. In place is legal.
  void (*rms_norm)(const float* x, const float* weight, size_t n, float eps, float* out);
  /// Split-half rotation of one head in place: pairs (i, i + half), i < half, by angles given as cosines and sines.
  void (*rope)(float* head, const float* cos, const float* sin, size_t half);
  /// out[i] = act(gate[i]) * up[i]; out may be gate or up.
  void (*glu[kActivationCount])(const float* gate, const float* up, size_t n, float* out);
  /// In place; NaN in gives NaN out.
  void (*softmax)(float* x, size_t n);
  /// x = cap * tanh(x / cap), in place.
  void (*softcap)(float* x, size_t n, float cap);
  /// out[i] = sum over t of coefficients[t] * terms[t][i], left to right; out may be one of the terms.
  void (*weighted_sum)(const float* const* terms, const float* coefficients, int count, size_t n, float* out);

  // --- Attention over one page of one kv head. [CacheType] -----------------------------------------------------------

  /// Stores the key of position `slot` < kPage into its page: dim values, transposed.
  void (*store_key[kCacheTypeCount])(const float* key, int dim, int slot, void* key_page);
  void (*store_value[kCacheTypeCount])(const float* value, int dim, int slot, void* value_page);
  /// scores[i * stride + j] = scale * (q[i] . k_j) for queries i < m and positions j < count of the page, count <=
  /// kPage. Up to the next multiple of 16 positions may be written.
  void (*scores[kCacheTypeCount])(const float* const* q, int m, const void* key_page, int dim, int count, float scale,
                                  float* scores, size_t stride);
  /// out[i][d] += sum over j of p[i * stride + j] * v_j[d] for first <= j < end of the page.
  void (*mix[kCacheTypeCount])(const float* p, size_t stride, int m, const void* value_page, int dim, int first,
                               int end, float* const* out);

  // --- Quantizers (packages/format/src/tiles/quantize.ts is their definition; same bytes). ---------------------------------

  /// Encodes `groups` consecutive groups of 32 weights. scales: f16 bits, data: 16 bytes a group. All encoders return
  /// the f32 bits of the largest magnitude among the weights, where NaN is above every number: beyond what the dtype
  /// holds, scales and data are of no use.
  uint32_t (*encode_q4_0)(const float* weights, size_t groups, bool scale_search, uint16_t* scales, uint8_t* data);
  uint32_t (*encode_q4_0_bf16)(const uint16_t* weights, size_t groups, bool scale_search, uint16_t* scales,
                               uint8_t* data);
  /// scales: f16 bits, data: 32 bytes a group.
  uint32_t (*encode_q8_0)(const float* weights, size_t groups, uint16_t* scales, uint8_t* data);
  /// Index of the first NaN or Inf, n if there is none.
  size_t (*find_nonfinite)(const float* x, size_t n);
  void (*bf16_to_f32)(const uint16_t* in, size_t n, float* out);
  void (*f16_to_f32)(const uint16_t* in, size_t n, float* out);
  /// Round to nearest even; magnitudes from 65,520 become Inf.
  void (*f32_to_f16)(const float* in, size_t n, uint16_t* out);
};

/// Instruction sets that this build has and this CPU can run, best first; always ends with "scalar".
/// Names: avx512_vnni, avx512, avx_vnni, avx2, sse41, neon, scalar.
const Kernels* const* available_kernels(int* count);

/// The table called `name`; null if it is unknown or the CPU lacks it. Empty name = the best.
const Kernels* find_kernels(const char* name);

}  // namespace cflow
