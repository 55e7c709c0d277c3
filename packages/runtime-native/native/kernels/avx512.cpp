// AVX-512 F, BW, DQ and VL.
#include "trait_avx512.h"

#include "table.h"

namespace cflow {

extern const Kernels kKernelsAvx512;
constinit const Kernels kKernelsAvx512 = kernels_of<Avx512>("avx512");

}  // namespace cflow
