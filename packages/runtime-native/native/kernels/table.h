// The table of a unit: every shared kernel over its trait.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention.h"
#include "elementwise.h"
#include "matrix_f32.h"
#include "matrix_q8.h"

namespace cflow {
namespace {

#include "quantizer.h"

template <class V>
constexpr Kernels kernels_of(const char* isa) {
  using enum Dtype;
  constexpr auto f32_cache = CacheType::f32;
  constexpr auto f16_cache = CacheType::f16;
  Kernels k{};
  k.isa = isa;
  k.matvec[0][0] = matvec_f32<V, q4_0>;
  k.matvec[0][1] = matvec_f32<V, q8_0>;
  k.matvec[0][2] = matvec_f32<V, f16>;
  k.matvec[0][3] = matvec_f32<V, f32>;
  k.matvec[1][0] = matvec_q8<V, q4_0>;
  k.matvec[1][1] = matvec_q8<V, q8_0>;
  k.matvecs[0][0] = matmul_f32<V, q4_0>;
  k.matvecs[0][1] = matmul_f32<V, q8_0>;
  k.matvecs[0][2] = matmul_f32<V, f16>;
  k.matvecs[0][3] = matmul_f32<V, f32>;
  k.matvecs[1][0] = matvecs_q8<V, q4_0>;
  k.matvecs[1][1] = matvecs_q8<V, q8_0>;
  k.matmul[0][0] = matmul_f32<V, q4_0>;
  k.matmul[0][1] = matmul_f32<V, q8_0>;
  k.matmul[0][2] = matmul_f32<V, f16>;
  k.matmul[0][3] = matmul_f32<V, f32>;
  k.matmul[1][0] = matmul_q8<V, q4_0>;
  k.matmul[1][1] = matmul_q8<V, q8_0>;
  k.q8_row_bytes = q8_row_bytes<V>;
  k.quantize_row = quantize_row<V>;
  k.dequantize_row[0] = dequantize_row<V, q4_0>;
  k.dequantize_row[1] = dequantize_row<V, q8_0>;
  k.dequantize_row[2] = dequantize_row<V, f16>;
  k.dequantize_row[3] = dequantize_row<V, f32>;
  k.dot = dot<V>;
  k.rms_norm = rms_norm<V>;
  k.rope = rope<V>;
  k.glu[0] = glu<V, Activation::gelu>;
  k.glu[1] = glu<V, Activation::gelu_tanh>;
  k.glu[2] = glu<V, Activation::silu>;
  k.softmax = softmax<V>;
  k.softcap = softcap<V>;
  k.weighted_sum = weighted_sum<V>;
  k.store_key[0] = store_key<f32_cache, f32_to_f16>;
  k.store_key[1] = store_key<f16_cache, f32_to_f16>;
  k.store_value[0] = store_value<f32_cache, f32_to_f16>;
  k.store_value[1] = store_value<f16_cache, f32_to_f16>;
  k.scores[0] = scores<V, f32_cache>;
  k.scores[1] = scores<V, f16_cache>;
  k.mix[0] = mix<V, f32_cache>;
  k.mix[1] = mix<V, f16_cache>;
  k.encode_q4_0 = encode_q4_0;
  k.encode_q4_0_bf16 = encode_q4_0_bf16;
  k.encode_q8_0 = encode_q8_0;
  k.find_nonfinite = find_nonfinite;
  k.bf16_to_f32 = bf16_to_f32;
  k.f16_to_f32 = f16_to_f32;
  k.f32_to_f16 = f32_to_f16;
  return k;
}

}  // namespace
}  // namespace cflow
