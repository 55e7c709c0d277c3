#include "faults.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace cflow {

namespace {

/// splitmix64.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void spoil(const IoBlock& block, uint64_t from) {
  if (block.kind == IoRequest::Kind::read) std::memset(block.data + from, 0xee, block.length - from);
}

}  // namespace

int64_t inject(const IoFaults& faults, const IoBlock& block, int64_t answer) {
  if (block.attempts != 1) return answer;
  const uint64_t random = mix(faults.seed + (block.number + 1) * 0x9e3779b97f4a7c15u);
  const uint64_t amount = random >> 32;
  uint32_t drawn = static_cast<uint32_t>(random) % 1000;
  /// Each fault takes its share of the 1,000.
  const auto takes = [&drawn](uint32_t share) {
    const bool taken = drawn < share;
    drawn = taken ? UINT32_MAX : drawn - share;
    return taken;
  };
  if (takes(faults.delay)) std::this_thread::sleep_for(std::chrono::microseconds(1000 + amount % 4001));
  if (takes(faults.cut) && answer > 1) {
    answer = 1 + static_cast<int64_t>(amount % static_cast<uint64_t>(answer - 1));
    spoil(block, static_cast<uint64_t>(answer));
  }
  if (takes(faults.error)) {
    spoil(block, 0);
    return -EIO;
  }
  if (takes(faults.invalid) && block.direct) {
    spoil(block, 0);
    return -EINVAL;
  }
  return answer;
}

}  // namespace cflow
