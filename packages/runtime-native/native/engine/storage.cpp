#include "storage.h"

#include <span>
#include <string>

namespace cflow {

namespace {

/// @throws Error INTERNAL unless all regions lie in a file of `size` bytes, and begin where direct I/O can read
void check_regions(std::span<const FetchRegion> regions, uint64_t size, uint64_t align) {
  for (const auto& [offset, length] : regions) {
    if (offset % align) throw Error("INTERNAL", "a region begins at " + std::to_string(offset) + ", which is not aligned");
    if (offset <= size && length <= size - offset) continue;
    throw Error("INTERNAL", "a region of " + std::to_string(length) + " bytes at " + std::to_string(offset) +
                                " is outside the file of " + std::to_string(size));
  }
}

}  // namespace

Storage::Storage(int fd, uint64_t size, const Program& program, const EngineOptions& options) {
  const DirectOptions& direct = options.direct;
  if (options.weights != WeightMode::direct) {
    weights_ = Weights::open(fd, size, options.weights, options.threads);
    return;
  }
  check_regions(program.resident, size, 1);
  check_regions(program.streams, size, kIoAlign);
  for (const auto& bank : program.banks) check_regions(bank, size, kIoAlign);
  io_ = IoQueue::open(fd, direct.io);
  weights_ = Weights::open_direct(fd, size, program.resident, *io_);
  if (!program.banks.empty()) {
    experts_ = std::make_unique<ExpertStore>(*io_, program.banks, direct.expert_slots, direct.half_life);
  }
  if (!program.streams.empty()) {
    streams_ = std::make_unique<StreamRing>(*io_, program.streams, direct.stream_slots, direct.read_ahead);
  }
}

void Storage::begin(uint32_t tokens) {
  weights_->begin();
  if (experts_) experts_->begin(tokens);
  if (streams_) streams_->begin();
}

TierStats Storage::stats() const {
  TierStats stats;
  if (experts_) {
    stats.experts = experts_->stats();
    stats.stall_seconds += experts_->stall_seconds();
  }
  if (streams_) {
    stats.stream_bytes = streams_->bytes();
    stats.stall_seconds += streams_->stall_seconds();
  }
  if (io_) stats.io = io_->stats();
  return stats;
}

}  // namespace cflow
