// The quantizers, for every instruction set: included inside the namespace of each unit and compiled with its flags.
//
// packages/format/src/tiles/quantize.ts is their definition, and the bytes are the same. That holds for every vector width
// because a lane is a group, and sums are sums of integers. Every other operation is one of f32, rounded; nothing may
// be fused (-ffp-contract=off).
//
// No include guard, no headers of the standard library: see the Makefile.

#if defined(__AVX512F__)
#define CFLOW_LANES 16
#elif defined(__AVX__)
#define CFLOW_LANES 8
#else
#define CFLOW_LANES 4
#endif

namespace quantizer {

constexpr int kLanes = CFLOW_LANES;

#include "quantizer_lanes.h"
#include "quantizer_numbers.h"
#include "quantizer_q4.h"
#include "quantizer_q8.h"

/// Calls `encode` for kLanes groups at a time; the rest is filled up with groups of zeros. Returns the largest result.
template <class In, class Encode>
CFLOW_INLINE uint32_t each_lanes(const In* weights, size_t groups, size_t group_bytes, uint16_t* scales, uint8_t* data,
                                 Encode encode) {
  Ints most = {};
  size_t at = 0;
  for (; at + kLanes <= groups; at += kLanes) {
    most = max(most, encode(weights + at * kGroup, scales + at, data + at * group_bytes));
  }
  const size_t rest = groups - at;
  if (rest > 0) {
    In padded[kLanes * kGroup] = {};
    uint16_t padded_scales[kLanes];
    uint8_t padded_data[kLanes * kGroup];
    __builtin_memcpy(padded, weights + at * kGroup, rest * kGroup * sizeof(In));
    most = max(most, encode(padded, padded_scales, padded_data));
    __builtin_memcpy(scales + at, padded_scales, rest * sizeof(uint16_t));
    __builtin_memcpy(data + at * group_bytes, padded_data, rest * group_bytes);
  }
  int32_t largest = 0;
  for (int i = 0; i < kLanes; i++) largest = most[i] > largest ? most[i] : largest;
  return static_cast<uint32_t>(largest);
}

/// out[i] = convert(in[i]), kLanes at a time.
template <class In, class VIn, class Out, class VOut, class Convert>
CFLOW_INLINE void each_value(const In* in, size_t n, Out* out, Convert convert) {
  size_t at = 0;
  for (; at + kLanes <= n; at += kLanes) store(out + at, convert(load<In, VIn>(in + at)));
  if (at == n) return;
  In padded[kLanes] = {};
  __builtin_memcpy(padded, in + at, (n - at) * sizeof(In));
  const VOut last = convert(load<In, VIn>(padded));
  __builtin_memcpy(out + at, &last, (n - at) * sizeof(Out));
}

}  // namespace quantizer

/// Kernels::encode_q4_0
static uint32_t encode_q4_0(const float* weights, size_t groups, bool search, uint16_t* scales, uint8_t* data) {
  using namespace quantizer;
  if (search) return each_lanes(weights, groups, 16, scales, data, encode_q4_lanes<float, true>);
  return each_lanes(weights, groups, 16, scales, data, encode_q4_lanes<float, false>);
}

/// Kernels::encode_q4_0_bf16
static uint32_t encode_q4_0_bf16(const uint16_t* weights, size_t groups, bool search, uint16_t* scales,
                                 uint8_t* data) {
  using namespace quantizer;
  if (search) return each_lanes(weights, groups, 16, scales, data, encode_q4_lanes<uint16_t, true>);
  return each_lanes(weights, groups, 16, scales, data, encode_q4_lanes<uint16_t, false>);
}

/// Kernels::encode_q8_0
static uint32_t encode_q8_0(const float* weights, size_t groups, uint16_t* scales, uint8_t* data) {
  return quantizer::each_lanes(weights, groups, 32, scales, data, quantizer::encode_q8_lanes);
}

/// Kernels::find_nonfinite
static size_t find_nonfinite(const float* x, size_t n) {
  using namespace quantizer;
  constexpr size_t kBlock = 16 * kLanes;
  size_t at = 0;
  for (; at + kBlock <= n; at += kBlock) {
    Ints most = {};
    for (size_t i = 0; i < kBlock; i += kLanes) {
      const Ints magnitude = load<float, Ints>(x + at + i) & 0x7fffffff;
      most = magnitude > most ? magnitude : most;
    }
    int32_t worst = 0;
    for (int i = 0; i < kLanes; i++) worst = most[i] > worst ? most[i] : worst;
    if (worst >= 0x7f800000) break;
  }
  for (; at < n; at++) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + at, 4);
    if ((bits & 0x7f800000u) == 0x7f800000u) return at;
  }
  return n;
}

/// Kernels::bf16_to_f32
static void bf16_to_f32(const uint16_t* in, size_t n, float* out) {
  using namespace quantizer;
  each_value<uint16_t, Halves, float, Words>(in, n, out, [](Halves x) { return __builtin_convertvector(x, Words) << 16; });
}

/// Kernels::f16_to_f32
static void f16_to_f32(const uint16_t* in, size_t n, float* out) {
  using namespace quantizer;
  each_value<uint16_t, Halves, float, Floats>(in, n, out,
                                              [](Halves x) { return half_value(__builtin_convertvector(x, Ints)); });
}

/// Kernels::f32_to_f16
static void f32_to_f16(const float* in, size_t n, uint16_t* out) {
  using namespace quantizer;
  each_value<float, Floats, uint16_t, Halves>(in, n, out,
                                              [](Floats x) { return __builtin_convertvector(half_bits(x), Halves); });
}

#undef CFLOW_LANES
#undef CFLOW_LOW
#undef CFLOW_HIGH
#undef CFLOW_INLINE
