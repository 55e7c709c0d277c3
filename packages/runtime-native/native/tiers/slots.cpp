#include "slots.h"

#include <cstring>
#include <string>

namespace cflow {

namespace {

uint64_t product(uint64_t a, uint64_t b, const char* what) {
  uint64_t bytes;
  if (__builtin_mul_overflow(a, b, &bytes)) throw Error("MEMORY", std::string(what) + ": more bytes than can be counted");
  return bytes;
}

}  // namespace

Slots::Slots(IoQueue& io, uint32_t count, uint64_t bytes, const char* what)
    : io_(io),
      count_(count),
      stride_(align_io(bytes)),
      memory_(product(count, stride_, what), what),
      transfers_(std::make_unique<Transfer[]>(count)) {}

Slots::~Slots() {
  for (uint32_t slot = 0; slot < count_; slot++) io_.withdraw(transfers_[slot]);
  for (uint32_t slot = 0; slot < count_; slot++) IoQueue::wait(transfers_[slot]);
}

void Slots::read(uint32_t slot, const FetchRegion& region, IoPriority priority) {
  transfers_[slot].reset();
  const IoRequest request{IoRequest::Kind::read, region.offset, align_io(region.length),
                          memory_.data() + slot * stride_};
  io_.submit(transfers_[slot], {&request, 1}, priority);
}

const uint8_t* Slots::wait(uint32_t slot, const FetchRegion& region, StallClock& stalls) const {
  const Transfer& transfer = transfers_[slot];
  if (transfer.pending()) stalls.time([&] { IoQueue::wait(transfer); });
  const int failure = transfer.failure();
  if (failure == 0) return memory_.data() + slot * stride_;
  const std::string at = std::to_string(region.length) + " bytes at " + std::to_string(region.offset);
  if (failure == Transfer::kEarlyEnd) {
    throw Error("NOT_READABLE", "the file ended before " + at + ": it became shorter while it was in use",
                "copy or convert it again, and open it anew");
  }
  throw Error("NOT_READABLE", "cannot read " + at + ": " + std::strerror(failure), "check the disk, and try again");
}

}  // namespace cflow
