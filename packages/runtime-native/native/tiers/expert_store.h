// Experts on disk: a cache of slots that routings call into (report §3.9.4, PIPO's Call and Synchronize).
#pragma once

#include <span>
#include <vector>

#include "expert_cache.h"
#include "slots.h"

namespace cflow {

/// An expert, and how many tokens chose it.
struct ExpertUse {
  uint32_t expert;
  uint32_t count;
};

struct ExpertStats {
  /// Experts that were called: those in memory, those on their way because they were predicted, and the rest.
  uint64_t hits = 0, predicted = 0, misses = 0;
  /// Experts that were read on a prediction, whether it came true or not.
  uint64_t ahead = 0;
  uint64_t slots = 0, slot_bytes = 0;
};

/// The thread that finishes a phase calls and releases while all others wait; any thread asks for what was called.
/// A slot is not given away while it is in use or being read into.
class ExpertStore {
 public:
  /// @param banks regions of the experts of each layer. @throws Error MEMORY
  ExpertStore(IoQueue& io, std::vector<std::vector<FetchRegion>> banks, uint32_t slots, double half_life);

  /// @throws Error INTERNAL unless the bank has so many experts of at least so many bytes
  void check(uint32_t bank, size_t experts, uint64_t bytes) const;

  /// A batch begins: nothing is in use, and reads that failed are forgotten.
  void begin(uint32_t tokens);
  /// Starts to read those that are not in memory, and keeps all of them until `release`.
  /// @throws Error INTERNAL if there are too few slots, MEMORY
  void call(uint32_t bank, std::span<const ExpertUse> chosen);
  /// The same on a prediction, the likeliest first: where a slot can be had, less urgent, kept until the bank is called or
  /// a call needs room. For a `single` token only the ranks are read that have been right often enough; all are watched.
  void call_ahead(uint32_t bank, std::span<const ExpertUse> predicted, bool single);
  void release(uint32_t bank);
  /// Waits for all that was called of a bank.
  void sync(uint32_t bank);

  bool ready(uint32_t bank, uint32_t expert) const;
  /// The bytes of an expert that was called. @throws Error NOT_READABLE
  const uint8_t* wait(uint32_t bank, uint32_t expert) const;

  const ExpertStats& stats() const { return stats_; }
  double stall_seconds() const { return stalls_.seconds(); }

 private:
  uint32_t key(uint32_t bank, uint32_t expert) const { return first_key_[bank] + expert; }
  const FetchRegion& region(uint32_t bank, uint32_t expert) const { return banks_[bank][expert]; }
  void read(uint32_t bank, uint32_t expert, uint32_t slot, IoPriority priority);
  uint32_t admit(uint32_t bank, uint32_t expert, IoPriority priority);
  bool worthwhile(uint32_t rank) const;
  void judge_guesses(uint32_t bank, std::span<const ExpertUse> chosen);
  void drop_predictions(uint32_t bank, std::span<const ExpertUse> chosen);
  void use(uint32_t bank, uint32_t slot);
  /// Nothing holds the slot any more; what was not begun to be read is not read.
  void drop(uint32_t slot);
  /// Brings a slot closer to being free: the last prediction gives way; without any, waits for a read that nobody wants.
  /// @throws Error INTERNAL if all slots are in use
  void make_room();

  const std::vector<std::vector<FetchRegion>> banks_;
  std::vector<uint32_t> first_key_;
  ExpertCache cache_;
  Slots slots_;
  /// By the experts that were called; or by a prediction, which had it read or found it in memory.
  enum class Hold : uint8_t { none, used, predicted, kept };
  /// By slot.
  std::vector<Hold> holds_;
  /// Slots that are held, by bank: used, and predicted or kept.
  std::vector<std::vector<uint32_t>> used_;
  std::vector<std::vector<uint32_t>> predicted_;
  /// What a prediction for a single token named, and memory had not.
  struct Guess {
    uint32_t expert;
    uint32_t rank;
  };
  /// By bank.
  std::vector<std::vector<Guess>> guesses_;
  /// By rank: the share of guesses that came true, the latest counting most.
  std::vector<double> precision_;
  ExpertStats stats_;
  mutable StallClock stalls_;
};

}  // namespace cflow
