#include "stream_ring.h"

#include <algorithm>

#include "../base/error.h"

namespace cflow {

namespace {

uint64_t largest(const std::vector<FetchRegion>& streams) {
  uint64_t most = 0;
  for (const FetchRegion& region : streams) most = std::max(most, region.length);
  return most;
}

}  // namespace

StreamRing::StreamRing(IoQueue& io, std::vector<FetchRegion> streams, uint32_t slots, bool read_ahead)
    : streams_(std::move(streams)),
      read_ahead_(read_ahead),
      slots_(io, std::min<uint32_t>(slots, static_cast<uint32_t>(streams_.size())), largest(streams_),
             "slots for weight streams"),
      slot_of_(streams_.size(), kNone),
      called_(streams_.size()) {
  if (slots_.count() == 0) throw Error("INTERNAL", "a ring without slots");
  for (uint32_t slot = 0; slot < slots_.count(); slot++) free_.push_back(slot);
}

void StreamRing::begin() {
  const bool whole = released_ == 0;
  std::fill(called_.begin(), called_.end(), false);
  const bool sound = std::none_of(slot_of_.begin(), slot_of_.end(), [this](uint32_t slot) {
    return slot != kNone && !slots_.pending(slot) && slots_.failed(slot);
  });
  if (!whole || !sound) {
    for (uint32_t& slot : slot_of_) {
      if (slot == kNone) continue;
      slots_.withdraw(slot);
      free_.push_back(slot);
      slot = kNone;
    }
    next_ = 0;
    released_ = 0;
  }
  fill();
}

void StreamRing::call(uint32_t stream) {
  while (slot_of_[stream] == kNone) {
    if (!fetch_next(IoPriority::needed)) throw Error("INTERNAL", "too few slots for the streams of a phase");
  }
  called_[stream] = true;
  if (slots_.pending(slot_of_[stream])) slots_.promote(slot_of_[stream]);
}

void StreamRing::release(uint32_t stream) {
  if (!called_[stream]) throw Error("INTERNAL", "a stream is released that was not called");
  called_[stream] = false;
  free_.push_back(slot_of_[stream]);
  slot_of_[stream] = kNone;
  released_ = (released_ + 1) % static_cast<uint32_t>(streams_.size());
  fill();
}

const uint8_t* StreamRing::wait(uint32_t stream) const {
  if (slot_of_[stream] == kNone) throw Error("INTERNAL", "a stream is used that was not called");
  return slots_.wait(slot_of_[stream], streams_[stream], stalls_);
}

bool StreamRing::fetch_next(IoPriority priority) {
  if (free_.empty() || slot_of_[next_] != kNone) return false;
  const uint32_t slot = free_.back();
  // Only after a batch that was broken off.
  slots_.settle(slot);
  slots_.read(slot, streams_[next_], priority);
  free_.pop_back();
  slot_of_[next_] = slot;
  next_ = (next_ + 1) % static_cast<uint32_t>(streams_.size());
  return true;
}

void StreamRing::fill() {
  while (read_ahead_ && fetch_next(IoPriority::ahead)) {
  }
}

}  // namespace cflow
