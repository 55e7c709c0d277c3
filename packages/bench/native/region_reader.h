// A file read as a pass through a model reads it: regions in an order, each used when it has come.
#pragma once

#include <string>
#include <vector>

#include "tiers/fetch.h"

namespace cflow {

struct RegionRead {
  uint64_t bytes = 0;
  /// Until the last byte has been used.
  double seconds = 0;
  IoStats stats;
  /// XOR of all words that lie at multiples of 8 in their region: that every byte was read.
  uint64_t folded = 0;
};

/// Blocks of each region one behind the other, `options.depth` of them under way at once, used in order on this thread.
/// @param prefetch whether a second thread goes ahead through what has come, by PREFETCHT0 at every 256th byte, as the
///   report's prefetch thread does
/// @throws Error NOT_READABLE, MEMORY, LIMIT_EXCEEDED
RegionRead read_regions(int fd, const std::vector<FetchRegion>& regions, const IoOptions& options, bool prefetch);

}  // namespace cflow
