#include "shares.h"

namespace cflow {

void WorkShares::open(uint32_t units, uint32_t waiting) {
  const auto threads = static_cast<uint32_t>(shares_.size() - 1);
  const uint32_t ready = units - waiting;
  left_.store(units, std::memory_order_relaxed);
  for (uint32_t i = 0; i < threads; i++) {
    const auto share = [&](uint32_t thread) { return static_cast<uint32_t>(uint64_t{ready} * thread / threads); };
    shares_[i].range.store(range(share(i), share(i + 1)), std::memory_order_release);
  }
  shares_[threads].range.store(range(ready, units), std::memory_order_release);
}

bool WorkShares::Share::claim(uint32_t& unit) {
  uint64_t now = range.load(std::memory_order_relaxed);
  do {
    unit = static_cast<uint32_t>(now);
    if (unit >= now >> 32) return false;
  } while (!range.compare_exchange_weak(now, now + 1, std::memory_order_acquire, std::memory_order_relaxed));
  return true;
}

bool WorkShares::claim(unsigned thread, uint32_t& unit) {
  const size_t threads = shares_.size() - 1;
  for (size_t i = 0; i < threads; i++) {
    if (shares_[(thread + i) % threads].claim(unit)) return true;
  }
  return shares_[threads].claim(unit);
}

void WorkShares::finish(uint32_t units) {
  if (units && left_.fetch_sub(units, std::memory_order_acq_rel) == units) left_.notify_all();
}

void WorkShares::wait(int spins) const {
  while (const uint32_t left = left_.load(std::memory_order_acquire)) wait_while(left_, left, spins);
}

}  // namespace cflow
