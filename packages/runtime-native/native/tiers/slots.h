// Memory that regions of a file are read into: equal slots on huge pages, each with its own transfer.
#pragma once

#include <memory>

#include "../base/memory.h"
#include "../io/io.h"
#include "fetch.h"

namespace cflow {

class Slots {
 public:
  /// @throws Error MEMORY
  Slots(IoQueue& io, uint32_t count, uint64_t bytes, const char* what);
  /// Takes back what is queued and waits for what is under way.
  ~Slots();

  uint32_t count() const { return count_; }
  uint64_t bytes() const { return memory_.size(); }
  bool pending(uint32_t slot) const { return transfers_[slot].pending(); }
  bool failed(uint32_t slot) const { return transfers_[slot].failure() != 0; }
  bool ready(uint32_t slot) const { return !pending(slot) && !failed(slot); }

  /// Starts to read a region; the slot must not be pending.
  void read(uint32_t slot, const FetchRegion& region, IoPriority priority);
  void promote(uint32_t slot) { io_.promote(transfers_[slot], IoPriority::needed); }
  /// True if the read has become incomplete.
  bool withdraw(uint32_t slot) { return io_.withdraw(transfers_[slot]); }

  /// Waits until nothing is under way in the slot.
  void settle(uint32_t slot) const { IoQueue::wait(transfers_[slot]); }

  /// The region in the slot, once it has arrived. Any thread.
  /// @throws Error NOT_READABLE if it could not be read
  const uint8_t* wait(uint32_t slot, const FetchRegion& region, StallClock& stalls) const;

 private:
  IoQueue& io_;
  const uint32_t count_;
  const uint64_t stride_;
  Block memory_;
  std::unique_ptr<Transfer[]> transfers_;
};

}  // namespace cflow
