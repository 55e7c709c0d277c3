// Which experts stand in which slots of memory, and which of them gives way: pure bookkeeping, for the engine and for
// replaying recorded routings.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace cflow {

/// Replacement by LRFU (Lee et al., 2001): an access adds to an expert's value, which halves every `half_life` tokens,
/// and the least value gives way. Half-life 0 is LRU, infinity is LFU; values outlive eviction.
class ExpertCache {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  ExpertCache(uint32_t keys, uint32_t slots, double half_life)
      : half_life_(half_life), values_(keys, kNever), slots_(keys, kNone), keys_(slots, kNone) {}

  uint32_t slots() const { return static_cast<uint32_t>(keys_.size()); }
  uint32_t slot_of(uint32_t key) const { return slots_[key]; }
  uint32_t key_of(uint32_t slot) const { return keys_[slot]; }

  void pass(uint32_t tokens) { now_ += tokens; }

  /// Notes that `count` tokens chose the expert.
  void touch(uint32_t key, uint32_t count) {
    if (half_life_ <= 0) {
      values_[key] = static_cast<double>(++accesses_);
      return;
    }
    // log2 of the decayed count, as of time 0, so that values of different ages compare as they are.
    const double age = now_ / half_life_;
    values_[key] = std::log2(std::exp2(values_[key] - age) + count) + age;
  }

  /// Gives the expert a slot: of those for which free(slot) holds the empty one, or that of least value; kNone if there
  /// is none. What stood there is forgotten.
  template <typename Free>
  uint32_t admit(uint32_t key, Free&& free) {
    uint32_t best = kNone;
    double least = std::numeric_limits<double>::infinity();
    for (uint32_t slot = 0; slot < slots(); slot++) {
      const bool empty = keys_[slot] == kNone;
      if (best != kNone && !empty && values_[keys_[slot]] >= least) continue;
      if (!free(slot)) continue;
      best = slot;
      if (empty) break;
      least = values_[keys_[slot]];
    }
    if (best == kNone) return kNone;
    if (keys_[best] != kNone) slots_[keys_[best]] = kNone;
    keys_[best] = key;
    slots_[key] = best;
    return best;
  }

  /// The slot no longer holds anything.
  void clear(uint32_t slot) {
    if (keys_[slot] != kNone) slots_[keys_[slot]] = kNone;
    keys_[slot] = kNone;
  }

 private:
  static constexpr double kNever = -std::numeric_limits<double>::infinity();

  const double half_life_;
  double now_ = 0;
  uint64_t accesses_ = 0;
  /// By key.
  std::vector<double> values_;
  std::vector<uint32_t> slots_;
  /// By slot.
  std::vector<uint32_t> keys_;
};

}  // namespace cflow
