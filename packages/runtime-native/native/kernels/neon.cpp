// NEON of AArch64: baseline instructions, sdot where the compiler may use it (-march=armv8.2-a+dotprod and later).
// trait_avx2.h says what each primitive does.
//
// Tested with kernel-test, cross-compiled by aarch64-linux-gnu-g++ and run under qemu-aarch64, both ways; not yet run
// or measured on an ARM CPU.
#include <arm_neon.h>

#include "layout.h"
#include "table.h"

namespace cflow {
namespace {

struct Neon {
  using F = float32x4_t;
  static constexpr int kWidth = 4;
  static constexpr int kTokensF32 = 4;
  static constexpr int kTokensQ8 = 4;

  static CFLOW_KERNEL F zero() { return vdupq_n_f32(0); }
  static CFLOW_KERNEL F set1(float x) { return vdupq_n_f32(x); }
  static CFLOW_KERNEL F load(const float* p) {
    return vreinterpretq_f32_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
  }
  static CFLOW_KERNEL void store(float* p, F x) { vst1q_f32(p, x); }
  static CFLOW_KERNEL F load_n(const float* p, int n) {
    if (n == kWidth) return load(p);
    float copy[kWidth] = {};
    for (int i = 0; i < n; ++i) copy[i] = p[i];
    return load(copy);
  }
  static CFLOW_KERNEL void store_n(float* p, F x, int n) {
    if (n == kWidth) return store(p, x);
    float copy[kWidth];
    store(copy, x);
    for (int i = 0; i < n; ++i) p[i] = copy[i];
  }
  static CFLOW_KERNEL F add(F a, F b) { return vaddq_f32(a, b); }
  static CFLOW_KERNEL F sub(F a, F b) { return vsubq_f32(a, b); }
  static CFLOW_KERNEL F mul(F a, F b) { return vmulq_f32(a, b); }
  static CFLOW_KERNEL F div(F a, F b) { return vdivq_f32(a, b); }
  static CFLOW_KERNEL F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  // These return NaN where either is NaN, which lets NaN through all the more.
  static CFLOW_KERNEL F min(F a, F b) { return vminq_f32(a, b); }
  static CFLOW_KERNEL F max(F a, F b) { return vmaxq_f32(a, b); }
  static CFLOW_KERNEL F abs(F x) { return vabsq_f32(x); }
  static CFLOW_KERNEL F round(F x) { return vrndnq_f32(x); }
  static CFLOW_KERNEL F pow2(F n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
  }
  static CFLOW_KERNEL F select_lt(F a, F b, F x, F y) { return vbslq_f32(vcltq_f32(a, b), x, y); }
  static CFLOW_KERNEL float hsum(F x) { return vaddvq_f32(x); }
  static CFLOW_KERNEL float hmax(F x) { return vmaxvq_f32(x); }

  static CFLOW_KERNEL F load_f16(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
  static CFLOW_KERNEL void int8_to_float(int8x16_t bytes, F* out) {
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
    const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
    out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
    out[1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(low)));
    out[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
    out[3] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)));
  }
  static CFLOW_KERNEL void load_q4_group(const uint8_t* p, F* out) {
    const int8x16_t bytes = load_bytes(p);
    int8_to_float(vsubq_s8(low_nibbles(bytes), vdupq_n_s8(8)), out);
    int8_to_float(vsubq_s8(high_nibbles(bytes), vdupq_n_s8(8)), out + 4);
  }
  static CFLOW_KERNEL void load_q8_group(const uint8_t* p, F* out) {
    int8_to_float(load_bytes(p), out);
    int8_to_float(load_bytes(p + 16), out + 4);
  }
  static CFLOW_KERNEL int8x8_t to_int8(F a, F b) {
    return vmovn_s16(vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a)), vmovn_s32(vcvtnq_s32_f32(b))));
  }
  static CFLOW_KERNEL void store_q8_group(int8_t* p, const F* x) {
    for (int k = 0; k < 4; ++k) vst1_s8(p + 8 * k, to_int8(x[2 * k], x[2 * k + 1]));
  }

  using S = float32x4x2_t;
  static CFLOW_KERNEL S load_scales(const uint8_t* f16_bits) { return {{load_f16(f16_bits), load_f16(f16_bits + 8)}}; }
  static CFLOW_KERNEL S load_floats8(const uint8_t* p) {
    return {{vreinterpretq_f32_u8(vld1q_u8(p)), vreinterpretq_f32_u8(vld1q_u8(p + 16))}};
  }
  static CFLOW_KERNEL void store_scales(float* p, S s) {
    store(p, s.val[0]);
    store(p + 4, s.val[1]);
  }
  static CFLOW_KERNEL S mul_scales(S a, S b) { return {{mul(a.val[0], b.val[0]), mul(a.val[1], b.val[1])}}; }
  /// A block of 16 bytes is a group of nibbles, or half a group of int8.
  template <int Block>
  static CFLOW_KERNEL F expand4(S s) {
    return vdupq_laneq_f32(s.val[Block / 4], Block % 4);
  }
  template <int Block>
  static CFLOW_KERNEL F expand8(S s) {
    return expand4<Block / 2>(s);
  }

  using B = int8x16_t;
  using I = int32x4_t;
  static constexpr int kBytes = 16;
  static constexpr int kQ8Bias = 0;

  static CFLOW_KERNEL B load_bytes(const uint8_t* p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
  static CFLOW_KERNEL I load_ints(const uint8_t* p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
  static CFLOW_KERNEL B low_nibbles(B x) { return vandq_s8(x, vdupq_n_s8(15)); }
  static CFLOW_KERNEL B high_nibbles(B x) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(x), 4)); }
#ifdef __ARM_FEATURE_DOTPROD
  static CFLOW_KERNEL I dot_q4(B low, B high, B x_low, B x_high, I start) {
    return vdotq_s32(vdotq_s32(start, low, x_low), high, x_high);
  }
  static CFLOW_KERNEL I dot_q8(B w, B x, I) { return vdotq_s32(vdupq_n_s32(0), w, x); }
#else
  static CFLOW_KERNEL I dot_q4(B low, B high, B x_low, B x_high, I start) {
    int16x8_t sum = vmull_s8(vget_low_s8(low), vget_low_s8(x_low));
    sum = vmlal_s8(sum, vget_high_s8(low), vget_high_s8(x_low));
    sum = vmlal_s8(sum, vget_low_s8(high), vget_low_s8(x_high));
    sum = vmlal_s8(sum, vget_high_s8(high), vget_high_s8(x_high));
    return vpadalq_s16(start, sum);
  }
  static CFLOW_KERNEL I dot_q8(B w, B x, I) {
    // At most 2 * 128 * 127 = 32,512 to an int16.
    const int16x8_t sum = vmull_s8(vget_low_s8(w), vget_low_s8(x));
    return vpaddlq_s16(vmlal_s8(sum, vget_high_s8(w), vget_high_s8(x)));
  }
#endif
  /// 256 * x + rest.
  static CFLOW_KERNEL I to_256ths(I x, I rest) { return vaddq_s32(vshlq_n_s32(x, 8), rest); }
  static CFLOW_KERNEL I fine_dot_q4(B low, B high, B x_low, B x_high, B rest_low, B rest_high, I start) {
    const I dots = dot_q4(low, high, x_low, x_high, vdupq_n_s32(0));
    return to_256ths(dots, dot_q4(low, high, rest_low, rest_high, start));
  }
  static CFLOW_KERNEL I fine_dot_q8(B w, B x, B rest, I start) {
    return to_256ths(dot_q8(w, x, start), dot_q8(w, rest, start));
  }
  static CFLOW_KERNEL F to_float(I x) { return vcvtq_f32_s32(x); }
};

}  // namespace

extern const Kernels kKernelsNeon;
constinit const Kernels kKernelsNeon = kernels_of<Neon>("neon");

}  // namespace cflow
