#include "speed.h"

#include <chrono>
#include <cstring>
#include <memory>

#include "../base/memory.h"

namespace cflow {

namespace {

[[noreturn]] void fail(int failure) {
  const bool ended = failure == Transfer::kEarlyEnd;
  throw Error("NOT_READABLE", std::string("reading to measure the disk: ") +
                                  (ended ? "the file has become shorter" : std::strerror(failure)));
}

}  // namespace

DiskSpeed measure_disk(int fd, uint64_t size, const IoOptions& options, unsigned milliseconds) {
  using Clock = std::chrono::steady_clock;
  const uint64_t blocks = size / options.block;
  if (blocks == 0) {
    throw Error("LIMIT_EXCEEDED", "a file of " + std::to_string(size) + " bytes is too short to measure the disk with",
                "use blocks of less than " + std::to_string(options.block) + " bytes");
  }
  // As many again are queued, so that the next is there when one ends.
  const unsigned count = 2 * options.depth;
  const Block memory(uint64_t{count} * options.block, "buffers to measure the disk with");
  // The pages are there before the clock starts.
  std::memset(memory.data(), 0, memory.size());
  const auto transfers = std::make_unique<Transfer[]>(count);
  // Declared last: ends first, and nothing is under way into the memory then.
  const auto queue = IoQueue::open(fd, options);
  uint64_t random = 1;
  const auto submit = [&](unsigned slot) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const IoRequest request{IoRequest::Kind::read, (random >> 16) % blocks * options.block, options.block,
                            memory.data() + uint64_t{slot} * options.block};
    queue->submit(transfers[slot], {&request, 1}, IoPriority::needed);
  };
  const auto end_of = [&](unsigned slot) {
    IoQueue::wait(transfers[slot]);
    if (transfers[slot].failure()) fail(transfers[slot].failure());
  };
  const auto start = Clock::now();
  const auto end = start + std::chrono::milliseconds(milliseconds);
  for (unsigned slot = 0; slot < count; slot++) submit(slot);
  unsigned slot = 0;
  for (; Clock::now() < end; slot = (slot + 1) % count) {
    end_of(slot);
    submit(slot);
  }
  for (unsigned left = 0; left < count; left++) end_of((slot + left) % count);
  DiskSpeed speed;
  speed.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  speed.stats = queue->stats();
  speed.bytes = speed.stats.bytes_read;
  return speed;
}

}  // namespace cflow
