// The file behind a queue: two descriptors, and what becomes of a block after each answer of the system.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "../base/descriptor.h"
#include "io.h"

namespace cflow {

/// A piece of a request, small enough that what is more urgent need not wait long for it.
struct IoBlock {
  Transfer* transfer = nullptr;
  IoRequest::Kind kind = IoRequest::Kind::read;
  /// Direct I/O was refused for it.
  bool refused = false;
  /// The attempt under way is direct.
  bool direct = false;
  /// Some of it went through the page cache.
  bool cached = false;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint8_t* data = nullptr;
  /// Bytes that must be moved: less than `length` only at the end of the file.
  uint64_t needed = 0;
  /// Bytes moved so far.
  uint64_t done = 0;
  uint32_t attempts = 0;
  /// Of them, those for which the system had no means.
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

  /// Size when it was opened; what is written since is the queue's to add.
  uint64_t size() const { return size_; }
  bool direct() const { return direct_.load(std::memory_order_relaxed); }
  /// Why not direct; empty if it is.
  std::string reason() const;

  /// The rest of the block: directly if the file allows it and all is aligned, else through the page cache.
  IoAttempt next(IoBlock& block) const;
  /// Takes in the answer to an attempt, bytes or -errno. Nothing: the block is to be attempted again.
  /// Else it has ended: 0, an errno or Transfer::kEarlyEnd.
  std::optional<int> settle(IoBlock& block, int64_t answer);

 private:
  void give_up_direct(int error);
  void forget(const IoBlock& block) const;

  Descriptor buffered_;
  Descriptor direct_file_;
  uint64_t size_ = 0;
  std::atomic<bool> direct_{false};
  mutable std::mutex mutex_;
  std::string reason_;
};

}  // namespace cflow
