// AVX-512 with the integer dot products of AVX-512 VNNI.
#include "trait_avx512.h"

#include "table.h"

namespace cflow {
namespace {

struct Avx512Vnni : Avx512 {
  static constexpr int kQ8Bias = 128;

  static CFLOW_KERNEL I dot_q4(B low, B high, B x_low, B x_high, I start) {
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start, low, x_low), high, x_high);
  }
  static CFLOW_KERNEL I dot_q8(B w, B x, I start) {
    return _mm512_dpbusd_epi32(start, _mm512_xor_si512(w, _mm512_set1_epi8(-128)), x);
  }
};

}  // namespace

extern const Kernels kKernelsAvx512Vnni;
constinit const Kernels kKernelsAvx512Vnni = kernels_of<Avx512Vnni>("avx512_vnni");

}  // namespace cflow
