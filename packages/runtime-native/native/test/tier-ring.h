// The ring of streams under slow and failing reads.
#pragma once

#include <chrono>
#include <thread>

#include "../tiers/stream_ring.h"
#include "tier-queue.h"

namespace tier_test {

inline std::vector<FetchRegion> streams_of(uint32_t count) {
  std::vector<FetchRegion> all;
  for (uint32_t i = 0; i < count; i++) all.push_back({i * 8192ull, 3000 + 1000ull * (i % 5)});
  return all;
}

inline void test_ring() {
  SlowQueue queue;
  const auto streams = streams_of(4);
  StreamRing ring(queue, streams, 2, true);
  using Offsets = std::vector<uint64_t>;
  ring.begin();
  check(queue.waiting() == Offsets{0, 8192}, "two streams ahead");
  ring.call(0);
  ring.call(1);
  check(queue.priorities() == std::vector<IoPriority>(2, IoPriority::needed), "a call makes them urgent");
  check(code_of([&] { ring.call(2); }) == "INTERNAL", "slots in use are not given away");
  queue.finish();
  check(right(ring.wait(0), streams[0]) && right(ring.wait(1), streams[1]), "streams");
  ring.release(1);
  check(queue.waiting() == Offsets{2 * 8192} && right(ring.wait(0), streams[0]), "released out of order");
  ring.release(0);
  check(queue.waiting() == Offsets{2 * 8192, 3 * 8192}, "in the order of the file");
  queue.finish();
  ring.call(2);
  ring.release(2);
  ring.call(3);
  check(right(ring.wait(3), streams[3]) && queue.waiting() == Offsets{0}, "beyond the end of a token");
  ring.release(3);
  queue.finish();
  const int before = queue.submitted;
  ring.begin();
  ring.call(0);
  check(queue.submitted == before && right(ring.wait(0), streams[0]), "the next token finds them");
  check(code_of([&] { ring.wait(3); }) == "INTERNAL", "a stream that was not called");
  check(ring.length(3) == streams[3].length && ring.length(4) == 0, "lengths");
}

inline void test_ring_breaks() {
  SlowQueue queue;
  const auto streams = streams_of(4);
  StreamRing ring(queue, streams, 2, true);
  ring.begin();
  ring.call(0);
  queue.finish();
  ring.release(0);
  queue.begin_all();
  // Broken off while stream 2 is being read: its slot is not given away before.
  std::thread starter([&] { ring.begin(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  queue.finish(2 * 8192);
  starter.join();
  ring.call(0);
  ring.call(1);
  queue.finish();
  check(right(ring.wait(0), streams[0]) && right(ring.wait(1), streams[1]), "starts anew");
  ring.release(0);
  ring.release(1);
  queue.finish(2 * 8192, EIO);
  ring.call(2);
  check(code_of([&] { ring.wait(2); }) == "NOT_READABLE", "a failed read");
  ring.begin();
  queue.finish();
  ring.call(0);
  queue.finish();
  check(right(ring.wait(0), streams[0]), "after it everything is read anew");
  // Memory that is refused when a read is queued.
  queue.refuse = true;
  check(code_of([&] { ring.release(0); }) == "MEMORY", "a refused read");
  queue.refuse = false;
  for (int token = 0; token < 3; token++) {
    ring.begin();
    for (uint32_t stream = 0; stream < 4; stream++) {
      ring.call(stream);
      queue.finish();
      check(right(ring.wait(stream), streams[stream]), "a token after it");
      ring.release(stream);
    }
  }
  ring.begin();
  ring.call(0);
  ring.call(1);
  queue.finish();
  check(right(ring.wait(0), streams[0]) && right(ring.wait(1), streams[1]), "no slot was lost");
  // Without reading ahead a stream is read when it is called.
  SlowQueue lazy;
  StreamRing stalls(lazy, streams, 2, false);
  stalls.begin();
  check(lazy.waiting().empty(), "nothing ahead");
  stalls.call(0);
  check(lazy.waiting().size() == 1, "what is called");
}

inline void test_ring_at_random(uint64_t seed) {
  SlowQueue queue(true, seed);
  io_test::Random random{seed};
  const auto streams = streams_of(static_cast<uint32_t>(2 + random.below(6)));
  StreamRing ring(queue, streams, static_cast<uint32_t>(2 + random.below(4)), random.below(2));
  for (int batch = 0; batch < 20; batch++) {
    ring.begin();
    const auto count = static_cast<uint32_t>(streams.size());
    const uint32_t broken = random.below(3) ? count : static_cast<uint32_t>(random.below(count));
    for (uint32_t stream = 0; stream < broken; stream++) {
      ring.call(stream);
      if (stream == 0) continue;
      // Two are in use.
      check(right(ring.wait(stream - 1), streams[stream - 1]), "the bytes of a stream in use");
      ring.release(stream - 1);
    }
    if (broken != count) continue;
    check(right(ring.wait(count - 1), streams[count - 1]), "the last stream");
    ring.release(count - 1);
  }
}

}  // namespace tier_test
