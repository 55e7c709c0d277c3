// The file of a queue: its two descriptors, the system call for each block, and what the answer means.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "../base/descriptor.h"
#include "io.h"
#include "page_cache.h"

namespace cflow {

/// A piece of a request, small enough that a more urgent request does not wait long for it.
struct IoBlock {
  Transfer* transfer = nullptr;
  IoRequest::Kind kind = IoRequest::Kind::read;
  /// Direct I/O was refused for it.
  bool refused = false;
  /// The attempt under way is direct.
  bool direct = false;
  /// Of the attempt under way, if it is a buffered read.
  PagesRead pages;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint8_t* data = nullptr;
  /// Bytes that must be moved: less than `length` only at the end of the file.
  uint64_t needed = 0;
  /// Bytes moved so far.
  uint64_t done = 0;
  uint32_t attempts = 0;
  /// Attempts that ended with EAGAIN.
  uint32_t again = 0;
  /// Counts the blocks of a queue.
  uint64_t number = 0;
};

/// The next system call for a block.
struct IoAttempt {
  int fd;
  uint64_t offset;
  uint32_t length;
  uint8_t* data;
};

class IoFile {
 public:
  /// @throws Error NOT_READABLE
  IoFile(int fd, IoMode mode);
  IoFile(const IoFile&) = delete;

  /// Size when it was opened, without what was written since.
  uint64_t size() const { return size_; }
  bool direct() const { return direct_.load(std::memory_order_relaxed); }
  /// Why not direct; empty if it is.
  std::string reason() const;

  /// The next part of the block: direct if the file allows it and all is aligned, else through the page cache.
  IoAttempt next(IoBlock& block);
  /// Takes the result of an attempt, bytes or -errno. Returns nothing if the block needs another attempt, else how it
  /// ended: 0, an errno or Transfer::kEarlyEnd.
  std::optional<int> settle(IoBlock& block, int64_t answer);

 private:
  void give_up_direct(int error);

  Descriptor buffered_;
  Descriptor direct_file_;
  uint64_t size_ = 0;
  std::atomic<bool> direct_{false};
  /// Written to through this queue: a spilled KV cache, which nobody else reads.
  std::atomic<bool> own_{false};
  mutable std::mutex mutex_;
  std::string reason_;
};

}  // namespace cflow
