#include "region_reader.h"

#include <fcntl.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "../base/memory.h"

namespace cflow {
namespace {

struct Piece {
  uint64_t offset, bytes;
};

std::vector<Piece> pieces_of(const std::vector<FetchRegion>& regions, uint64_t block) {
  std::vector<Piece> pieces;
  for (const FetchRegion& region : regions) {
    for (uint64_t at = 0; at < region.length; at += block) {
      pieces.push_back({region.offset + at, region.length - at < block ? region.length - at : block});
    }
  }
  return pieces;
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
  const std::vector<Piece> pieces = pieces_of(regions, options.block);
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
  const auto slot_of = [&](size_t piece) { return memory.data() + piece % slots * options.block; };
  const auto submit = [&](size_t piece) {
    const auto& [offset, bytes] = pieces[piece];
    const uint64_t whole = align_io(bytes);
    const IoRequest request{IoRequest::Kind::read, offset, whole, slot_of(piece)};
    queue->submit(transfers[piece % slots], {&request, 1}, IoPriority::needed);
  };
  const auto start = Clock::now();
  for (size_t piece = 0; piece < options.depth && piece < pieces.size(); piece++) submit(piece);
  for (size_t piece = 0; piece < pieces.size(); piece++) {
    const Transfer& transfer = transfers[piece % slots];
    IoQueue::wait(transfer);
    if (transfer.failure() > 0) throw Error("NOT_READABLE", std::strerror(transfer.failure()));
    if (transfer.failure()) throw Error("NOT_READABLE", "the file ended within a region");
    if (ahead) ahead->come(piece + 1);
    if (piece + options.depth < pieces.size()) submit(piece + options.depth);
    result.folded ^= fold(slot_of(piece), pieces[piece].bytes);
    result.bytes += pieces[piece].bytes;
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  result.stats = queue->stats();
  return result;
}

}  // namespace cflow
