// AVX-512 with the integer dot products of AVX-512 VNNI.
#include "trait_avx512.h"

#include "table.h"

namespace cflow {
namespace {

#include "q8_avx512_vnni.h"

#include "q8_avx512_vnni_matmul.h"
#include "q8_avx512_vnni_matvec.h"

constexpr Kernels table() {
  Kernels k = kernels_of<Avx512>("avx512_vnni");
  k.q8_row_bytes = vnni_q8_row_bytes;
  k.quantize_row = vnni_quantize_row;
  k.matvec[1][0] = matvec_q4_0_q8;
  k.matvec[1][1] = matvec_q8_0_q8;
  k.matvecs[1][0] = matvecs_q4_0_q8;
  k.matvecs[1][1] = matvecs_q8_0_q8;
  k.matmul[1][0] = vnni_matmul_q8<Dtype::q4_0>;
  k.matmul[1][1] = vnni_matmul_q8<Dtype::q8_0>;
  return k;
}

}  // namespace

extern const Kernels kKernelsAvx512Vnni;
constinit const Kernels kKernelsAvx512Vnni = table();

}  // namespace cflow
