// Weight streams on disk that every token reads in the same order: a ring of slots that is always being filled.
#pragma once

#include <vector>

#include "slots.h"

namespace cflow {

/// The next stream is fetched as soon as a slot is free, beyond the end of a token into the next: calls as early as the
/// memory allows. Without read-ahead a stream is fetched when it is called.
class StreamRing {
 public:
  /// @param streams in the order of their first use in a token; each is used once
  /// @throws Error MEMORY, INTERNAL without slots
  StreamRing(IoQueue& io, std::vector<FetchRegion> streams, uint32_t slots, bool read_ahead);

  /// A batch begins. After one that was broken off, the ring starts anew.
  void begin();
  /// Fetches up to this stream; the streams before it have been released or are in use.
  /// @throws Error INTERNAL if there are too few slots
  void call(uint32_t stream);
  void sync(uint32_t stream) { wait(stream); }
  /// @throws Error INTERNAL if the stream was not called
  void release(uint32_t stream);

  /// 0 if the stream is out of range.
  uint64_t length(uint32_t stream) const { return stream < streams_.size() ? streams_[stream].length : 0; }
  bool ready(uint32_t stream) const { return slot_of_[stream] != kNone && slots_.ready(slot_of_[stream]); }
  /// The bytes of a stream that was called. Any thread. @throws Error NOT_READABLE
  const uint8_t* wait(uint32_t stream) const;

  uint64_t bytes() const { return slots_.bytes(); }
  double stall_seconds() const { return stalls_.seconds(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  bool fetch_next(IoPriority priority);
  void fill();

  const std::vector<FetchRegion> streams_;
  const bool read_ahead_;
  Slots slots_;
  /// By stream.
  std::vector<uint32_t> slot_of_;
  std::vector<bool> called_;
  /// Slots that hold nothing; one may still be pending after a batch was broken off.
  std::vector<uint32_t> free_;
  /// The stream that is fetched next, and the one that is released next; both go round.
  uint32_t next_ = 0;
  uint32_t released_ = 0;
  mutable StallClock stalls_;
};

}  // namespace cflow
