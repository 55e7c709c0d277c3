// What a buffered read leaves in the page cache: the pages that were there before it, and no others.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>

namespace cflow {

/// The pages of one buffered read. Other processes may be using those that were cached before it, so they stay; the
/// others are evicted after it, or a model larger than memory would push everything else out of the page cache.
class PagesRead {
 public:
  /// Most bytes of one read.
  static constexpr uint64_t kMostBytes = 4u << 20;

  /// Notes which pages of [offset, offset + length) are cached. Where the system does not say, all count as cached; it
  /// says so only to whoever owns the file or may write to it.
  void before(int fd, uint64_t offset, uint64_t length);
  /// As `before`, of a file that nobody else reads: none counts as cached.
  void before_own(uint64_t offset, uint64_t length);
  /// Evicts the pages that were not cached. Does nothing without a call of `before`.
  void after(int fd);

 private:
  static constexpr size_t kMostPages = kMostBytes / 4096 + 1;

  void cover(uint64_t offset, uint64_t length);

  uint64_t first_ = 0;
  size_t pages_ = 0;
  std::bitset<kMostPages> cached_;
};

}  // namespace cflow
