// The units of one phase, which threads claim one by one.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "../base/team.h"

namespace cflow {

/// A thread claims units of its own contiguous range first, then those of others: it streams through neighbouring weights,
/// and work does not wait for a thread that the system has paused. Units, not threads, are counted: a thread that comes
/// late, or not at all, delays nobody.
class WorkShares {
 public:
  explicit WorkShares(unsigned threads) : shares_(threads + 1) {}

  /// Offers `units`; the last `waiting` of them, which may have to wait for the disk, go out last and in order, so that no
  /// thread waits for what arrives last while other bytes are there. Only when all units before are finished.
  void open(uint32_t units, uint32_t waiting);
  /// The next unit for a thread; false when none is left. Whoever claims a unit sees what was written before `open`.
  bool claim(unsigned thread, uint32_t& unit);
  /// Tells that the caller has run `units` of those that it claimed.
  void finish(uint32_t units);
  /// Waits until all units are finished: spins so often, then sleeps.
  void wait(int spins) const;

 private:
  /// Units next <= i < end, both in one word: a claim is right even by a thread that was paused in the middle of it while
  /// other phases were opened.
  struct alignas(64) Share {
    std::atomic<uint64_t> range{0};
    bool claim(uint32_t& unit);
  };
  static uint64_t range(uint32_t next, uint32_t end) { return uint64_t{end} << 32 | next; }

  /// One a thread, then that of the units that may wait.
  std::vector<Share> shares_;
  alignas(64) std::atomic<uint32_t> left_{0};
};

}  // namespace cflow
