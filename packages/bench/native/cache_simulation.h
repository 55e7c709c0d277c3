// What a product of a matrix and a vector costs in caches that are simulated.
#pragma once

#include "cache_model.h"
#include "traced_kernels.h"

namespace cflow {

/// A product out = W x, the matrix in stripes of `stripe_rows` rows: 128 as in files, 1 for a row-major matrix, whose
/// tiles of one row stand one behind the other, with their 16 bytes of header.
struct MatvecCase {
  Dtype dtype;
  Arithmetic arithmetic;
  int rows, cols, stripe_rows;

  /// Where the stripe that begins with a row begins, in bytes.
  size_t stripe_at(int row) const {
    return static_cast<size_t>(row / stripe_rows) * stripe_bytes(dtype, stripe_rows, cols);
  }
  int rows_at(int row) const { return rows - row < stripe_rows ? rows - row : stripe_rows; }
  size_t bytes() const {
    const int last = (rows - 1) / stripe_rows * stripe_rows;
    return stripe_at(last) + stripe_bytes(dtype, rows_at(last), cols);
  }
  /// All stripes in their order.
  void multiply(MatvecFn kernel, const uint8_t* weights, const void* x, float* out) const {
    for (int row = 0; row < rows; row += stripe_rows) {
      kernel(weights + stripe_at(row), rows_at(row), cols, x, out + row);
    }
  }
};

/// Where the numbers come from: the matrix, the vector (with the result), the kernel's own arrays.
struct SimulatedCounts {
  CacheCounts weights, vectors, locals;
};

/// Caches start empty.
/// @throws Error MEMORY, USAGE if the kernels lack the case
SimulatedCounts simulate_matvec(const MatvecCase& matvec, const TracedKernels& kernels, CacheModel model);

}  // namespace cflow
