// Which experts occupy which cache slots, and which one is evicted: pure bookkeeping, for the engine and for
// replaying recorded routings.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace cflow {

/// Replacement by LRFU (Lee et al., 2001): an access adds to an expert's value, which halves every `half_life` tokens,
/// and the least value is evicted. Half-life 0 is LRU, infinity is LFU; values outlive eviction. The experts of a layer
/// age when their layer chooses, not before: those of the layers that are next are not older than those just used.
/// Tokens also like what the token before them chose: that is worth `repeat` more, as a share of tokens.
class ExpertCache {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  /// Best on recorded routings (`cflow-bench cache`).
  static constexpr double kRepeat = 0.25;

  /// @param first_keys of each bank, and the number of keys
  ExpertCache(const std::vector<uint32_t>& first_keys, uint32_t slots, double half_life, double repeat)
      : half_life_(half_life),
        repeat_(half_life > 0 && std::isfinite(half_life) ? repeat / (1 - std::exp2(-1 / half_life)) : 0),
        clocks_(first_keys.size() - 1),
        banks_(first_keys.back()),
        used_(first_keys.back(), -1),
        values_(first_keys.back(), kNever),
        slots_(first_keys.back(), kNone),
        keys_(slots, kNone) {
    for (uint32_t bank = 0; bank + 1 < first_keys.size(); bank++) {
      std::fill(banks_.begin() + first_keys[bank], banks_.begin() + first_keys[bank + 1], bank);
    }
  }
  /// Keys of one bank.
  ExpertCache(uint32_t keys, uint32_t slots, double half_life)
      : ExpertCache(std::vector<uint32_t>{0, keys}, slots, half_life, 0) {}

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
    const double age = used_[key] = clocks_[banks_[key]] = now_ / half_life_;
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
      if (best != kNone && !empty && value(keys_[slot]) >= least) continue;
      if (!free(slot)) continue;
      best = slot;
      if (empty) break;
      least = value(keys_[slot]);
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

  /// Of today.
  double value(uint32_t key) const {
    const double clock = clocks_[banks_[key]];
    const double count = values_[key] - clock;
    return repeat_ > 0 && used_[key] == clock ? std::log2(std::exp2(count) + repeat_) : count;
  }

  const double half_life_;
  /// In uses, of which half_life * 1.44 are those of an expert that every token chooses.
  const double repeat_;
  double now_ = 0;
  uint64_t accesses_ = 0;
  /// By bank: half-lives until it was last called. Zeros where there are none.
  std::vector<double> clocks_;
  /// By key.
  std::vector<uint32_t> banks_;
  /// The clock of the bank as it was then.
  std::vector<double> used_;
  std::vector<double> values_;
  std::vector<uint32_t> slots_;
  /// By slot.
  std::vector<uint32_t> keys_;
};

}  // namespace cflow
