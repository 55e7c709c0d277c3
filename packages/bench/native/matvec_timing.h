// The same product over the same numbers in two layouts: time, and misses where the CPU counts them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cache_simulation.h"

namespace cflow {

struct TimedArm {
  /// Of each run.
  std::vector<double> seconds;
  /// Lines that reads did not find in the first cache, of each run; empty where the CPU does not tell.
  std::vector<double> misses;
};

struct MatvecTiming {
  /// In stripes of 128 rows, and in those of the case.
  TimedArm tiled, row_major;
  /// Whether both gave the same numbers to the bit.
  bool same = false;
  /// Why there are no misses.
  std::string problem;
};

/// Runs on one thread, in turns, after one run of each that does not count.
/// @throws Error MEMORY, USAGE if the kernels lack the case
MatvecTiming time_matvec(const MatvecCase& row_major, const Kernels& kernels, int runs);

}  // namespace cflow
