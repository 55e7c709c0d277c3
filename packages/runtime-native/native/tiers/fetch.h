// What the parts of the disk tier share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "../io/io.h"

namespace cflow {

/// Bytes of the file that are fetched as a whole; `offset` is a multiple of kIoAlign.
struct FetchRegion {
  uint64_t offset = 0;
  uint64_t length = 0;
};

/// Time that threads spend waiting for the disk, summed over threads.
class StallClock {
 public:
  template <typename Wait>
  void time(Wait&& wait) {
    const auto start = std::chrono::steady_clock::now();
    wait();
    const auto spent = std::chrono::steady_clock::now() - start;
    nanoseconds_.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(spent).count()), std::memory_order_relaxed);
  }
  double seconds() const { return static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) * 1e-9; }

 private:
  std::atomic<uint64_t> nanoseconds_{0};
};

}  // namespace cflow
