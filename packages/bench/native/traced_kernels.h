// Kernels that tell which addresses they touch (trace.h), by the names of what they are like.
#pragma once

#include "kernels/kernels.h"

namespace cflow {

struct TracedKernels {
  /// [arithmetic][dtype]; null where there is none. They write nothing that means anything.
  MatvecFn matvec[2][kDtypeCount];
  size_t (*q8_row_bytes)(int cols);
};

/// Vectors of 4, 8 or 16 floats; null for others.
const TracedKernels* traced_vectors(int width);
/// The kernels that are written by hand for AVX-512 VNNI; null where this build or this CPU has them not.
const TracedKernels* traced_avx512_vnni();

}  // namespace cflow
