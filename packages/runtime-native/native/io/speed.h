// How fast the disk behind a file is.
#pragma once

#include "io.h"

namespace cflow {

struct DiskSpeed {
  uint64_t bytes = 0;
  double seconds = 0;
  /// How it was read.
  IoStats stats;
};

/// Reads blocks of `options.block` bytes at random places of the file, `options.depth` at a time, into memory on huge
/// pages, for about so many milliseconds.
/// @param size of the file, in bytes; at least a block
/// @throws Error LIMIT_EXCEEDED, MEMORY, NOT_READABLE
DiskSpeed measure_disk(int fd, uint64_t size, const IoOptions& options, unsigned milliseconds);

}  // namespace cflow
