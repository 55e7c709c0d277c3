// Matrix kernels that compute nothing and tell which addresses they touch: the shared kernels over a trait of vectors
// of W floats and 4 W bytes, as AVX2 (8), AVX-512 (16) or NEON (4) have them. To be included first, by units that are
// nothing else.
//
// Vectors tell of it when they are copied, so that sums which a kernel keeps in an array count as the memory that they
// are. What stays in registers counts too, as a few lines that never leave the first cache: misses are exact, accesses
// are not.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cflow {

void trace_read(const void* at, size_t bytes);
void trace_write(const void* at, size_t bytes);
/// Of the line at `at`, into the second cache.
void trace_prefetch(const void* at);

static inline void trace_copy(void* to, const void* from, size_t bytes) {
  trace_read(from, bytes);
  trace_write(to, bytes);
  __builtin_memcpy(to, from, bytes);
}

static inline void trace_fill(void* to, int byte, size_t bytes) {
  trace_write(to, bytes);
  __builtin_memset(to, byte, bytes);
}

}  // namespace cflow

#define __builtin_memcpy(to, from, bytes) ::cflow::trace_copy(to, from, bytes)
#define __builtin_memset(to, byte, bytes) ::cflow::trace_fill(to, byte, bytes)
#define __builtin_prefetch(at, ...) ::cflow::trace_prefetch(at)

#include "kernels/matrix_f32.h"
#include "kernels/matrix_q8.h"

namespace cflow {
namespace {

template <int W>
struct Addresses {
  struct alignas(4 * W) F {
    F() = default;
    F(const F& other) { *this = other; }
    F& operator=(const F& other) {
      trace_read(&other, sizeof(F));
      trace_write(this, sizeof(F));
      return *this;
    }
    uint8_t bytes[4 * W];
  };
  struct Register {};
  using S = Register;
  using B = Register;
  using I = Register;
  static constexpr int kWidth = W;
  static constexpr int kBytes = 4 * W;
  static constexpr int kQ8Bias = 0;

  static Register read(const void* p, size_t bytes) {
    trace_read(p, bytes);
    return {};
  }
  static F zero() { return {}; }
  static F set1(float) { return {}; }
  static F mul(const F&, const F&) { return {}; }
  static F fma(const F&, const F&, const F&) { return {}; }
  static float hsum(const F& x) {
    trace_read(&x, sizeof x);
    return 0;
  }
  static F load(const float* p) {
    trace_read(p, sizeof(F));
    return {};
  }
  static void store(float* p, const F&) { trace_write(p, sizeof(F)); }
  static F load_f16(const uint8_t* p) {
    trace_read(p, sizeof(F) / 2);
    return {};
  }
  static void load_q4_group(const uint8_t* p, F*) { trace_read(p, 16); }
  static void load_q8_group(const uint8_t* p, F*) { trace_read(p, 32); }

  static S load_scales(const uint8_t* p) { return read(p, 16); }
  static S load_floats8(const uint8_t*) { return {}; }
  static void store_scales(float* p, S) { trace_write(p, 32); }
  static S mul_scales(S, S) { return {}; }
  template <int Block>
  static F expand4(S) {
    return {};
  }
  template <int Block>
  static F expand8(S) {
    return {};
  }

  static B load_bytes(const uint8_t* p) { return read(p, kBytes); }
  static I load_ints(const uint8_t* p) { return read(p, kBytes); }
  static B low_nibbles(B) { return {}; }
  static B high_nibbles(B) { return {}; }
  static I fine_dot_q4(B, B, B, B, B, B, I) { return {}; }
  static I fine_dot_q8(B, B, B, I) { return {}; }
  static F to_float(I) { return {}; }
};

}  // namespace
}  // namespace cflow
