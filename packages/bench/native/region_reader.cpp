#include "region_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/memory.h"

namespace cflow {
namespace {

struct Piece {
  uint64_t offset, bytes;
};

/// The pieces of regions, one after the other. Their number is no reason to hold them all.
class Pieces {
 public:
  Pieces(const std::vector<FetchRegion>& regions, uint64_t block) : regions_(regions), block_(block) {}
  bool next(Piece& piece) {
    while (region_ < regions_.size() && at_ == regions_[region_].length) {
      region_++;
      at_ = 0;
    }
    if (region_ == regions_.size()) return false;
    const auto& [offset, length] = regions_[region_];
    piece = {offset + at_, std::min(block_, length - at_)};
    at_ += piece.bytes;
    return true;
  }

 private:
  const std::vector<FetchRegion>& regions_;
  const uint64_t block_;
  size_t region_ = 0;
  uint64_t at_ = 0;
};

/// @throws Error NOT_READABLE, LIMIT_EXCEEDED
void check_regions(int fd, const std::vector<FetchRegion>& regions) {
  struct stat info {};
  if (fstat(fd, &info) != 0) throw Error("NOT_READABLE", std::string("cannot look at the file: ") + std::strerror(errno));
  const auto size = static_cast<uint64_t>(info.st_size);
  for (const auto& [offset, length] : regions) {
    if (offset <= size && length <= size - offset) continue;
    throw Error("NOT_READABLE", "a region of " + std::to_string(length) + " bytes at " + std::to_string(offset) +
                                    " ends beyond the file of " + std::to_string(size));
  }
}

/// What comes from the disk shall not come from memory.
void forget(int fd, const std::vector<FetchRegion>& regions) {
#ifdef POSIX_FADV_DONTNEED
  for (const FetchRegion& region : regions) {
    posix_fadvise(fd, static_cast<off_t>(region.offset), static_cast<off_t>(region.length), POSIX_FADV_DONTNEED);
  }
#else
  (void)fd;
  (void)regions;
#endif
}

uint64_t fold(const uint8_t* data, uint64_t bytes) {
  uint64_t sums[8] = {};
  uint64_t at = 0;
  for (; at + sizeof sums <= bytes; at += sizeof sums) {
    uint64_t words[8];
    std::memcpy(words, data + at, sizeof words);
    for (int i = 0; i < 8; i++) sums[i] ^= words[i];
  }
  uint64_t all = 0;
  for (; at < bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, bytes - at < 8 ? bytes - at : 8);
    all ^= word;
  }
  for (const uint64_t sum : sums) all ^= sum;
  return all;
}

/// Follows what has come, ahead of its use.
class Prefetcher {
 public:
  Prefetcher(const uint8_t* memory, uint64_t block, unsigned slots)
      : memory_(memory), block_(block), slots_(slots), thread_([this] { run(); }) {}
  ~Prefetcher() {
    pieces_ = kEnd;
    pieces_.notify_one();
    thread_.join();
  }
  /// Pieces up to this number have come.
  void come(uint64_t pieces) {
    pieces_ = pieces;
    pieces_.notify_one();
  }

 private:
  static constexpr uint64_t kEnd = ~uint64_t{0};
  static constexpr uint64_t kStride = 256;

  void run() {
    uint64_t seen = 0;
    for (;;) {
      pieces_.wait(seen);
      const uint64_t come = pieces_;
      if (come == kEnd) return;
      const uint8_t* slot = memory_ + (come - 1) % slots_ * block_;
      for (uint64_t at = 0; at < block_; at += kStride) __builtin_prefetch(slot + at, 0, 3);
      seen = come;
    }
  }

  const uint8_t* memory_;
  uint64_t block_;
  unsigned slots_;
  std::atomic<uint64_t> pieces_{0};
  std::thread thread_;
};

}  // namespace

RegionRead read_regions(int fd, const std::vector<FetchRegion>& regions, const IoOptions& options, bool prefetch) {
  using Clock = std::chrono::steady_clock;
  // First: it refuses blocks of which there would be too many.
  auto opened = IoQueue::open(fd, options);
  check_regions(fd, regions);
  // One more than are under way: the one in use.
  const unsigned slots = options.depth + 1;
  const Block memory(uint64_t{slots} * options.block, "buffers to read regions with");
  std::memset(memory.data(), 0, memory.size());
  const auto transfers = std::make_unique<Transfer[]>(slots);
  // Declared behind them: ends first, and nothing is under way into the memory then.
  const auto queue = std::move(opened);
  forget(fd, regions);
  RegionRead result;
  std::unique_ptr<Prefetcher> ahead;
  if (prefetch) ahead = std::make_unique<Prefetcher>(memory.data(), options.block, slots);
  const auto slot_of = [&](uint64_t piece) { return memory.data() + piece % slots * options.block; };
  Pieces to_read(regions, options.block);
  Pieces to_use(regions, options.block);
  Piece piece{};
  uint64_t submitted = 0;
  const auto submit = [&] {
    if (!to_read.next(piece)) return;
    const IoRequest request{IoRequest::Kind::read, piece.offset, align_io(piece.bytes), slot_of(submitted)};
    queue->submit(transfers[submitted++ % slots], {&request, 1}, IoPriority::needed);
  };
  const auto start = Clock::now();
  while (submitted < options.depth) {
    const uint64_t before = submitted;
    submit();
    if (submitted == before) break;
  }
  for (uint64_t used = 0; to_use.next(piece); used++) {
    const uint64_t bytes = piece.bytes;
    const Transfer& transfer = transfers[used % slots];
    IoQueue::wait(transfer);
    if (transfer.failure() > 0) throw Error("NOT_READABLE", std::strerror(transfer.failure()));
    if (transfer.failure()) throw Error("NOT_READABLE", "the file ended within a region");
    if (ahead) ahead->come(used + 1);
    submit();
    result.folded ^= fold(slot_of(used), bytes);
    result.bytes += bytes;
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  result.stats = queue->stats();
  return result;
}

}  // namespace cflow
