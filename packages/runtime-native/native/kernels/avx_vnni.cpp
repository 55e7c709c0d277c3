// AVX2 with the integer dot products of AVX-VNNI.
//
// A build with VNNI=evex (see the Makefile) uses the same instructions of AVX-512 VNNI + VL instead, so that this unit
// can be tested on CPUs that have only those.
#include "trait_avx2.h"

#include "table.h"

namespace cflow {
namespace {

struct AvxVnni : Avx2 {
  static constexpr int kQ8Bias = 128;

  static CFLOW_KERNEL I dot_bytes(I sum, B u8, B s8) {
#ifdef __AVXVNNI__
    return _mm256_dpbusd_avx_epi32(sum, u8, s8);
#else
    return _mm256_dpbusd_epi32(sum, u8, s8);
#endif
  }
  static CFLOW_KERNEL I dot_q4(B low, B high, B x_low, B x_high, I start) {
    return dot_bytes(dot_bytes(start, low, x_low), high, x_high);
  }
  /// 256 * x + rest.
  static CFLOW_KERNEL I to_256ths(I x, I rest) { return _mm256_add_epi32(_mm256_slli_epi32(x, 8), rest); }
  static CFLOW_KERNEL I fine_dot_q4(B low, B high, B x_low, B x_high, B rest_low, B rest_high, I start) {
    const I dots = dot_q4(low, high, x_low, x_high, _mm256_setzero_si256());
    return to_256ths(dots, dot_q4(low, high, rest_low, rest_high, start));
  }
  static CFLOW_KERNEL I dot_q8(B w, B x, I start) {
    return dot_bytes(start, _mm256_xor_si256(w, _mm256_set1_epi8(-128)), x);
  }
  static CFLOW_KERNEL I fine_dot_q8(B w, B x, B rest, I start) {
    return to_256ths(dot_q8(w, x, _mm256_setzero_si256()), dot_q8(w, rest, start));
  }
};

}  // namespace

extern const Kernels kKernelsAvxVnni;
constinit const Kernels kKernelsAvxVnni = kernels_of<AvxVnni>("avx_vnni");

}  // namespace cflow
