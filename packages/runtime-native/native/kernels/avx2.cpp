// AVX2 + FMA + F16C.
#include "trait_avx2.h"

#include "table.h"

namespace cflow {

extern const Kernels kKernelsAvx2;
constinit const Kernels kKernelsAvx2 = kernels_of<Avx2>("avx2");

}  // namespace cflow
