// Keys and values beyond their memory: how they go to disk, and what that cost.
#pragma once

#include <cstdint>
#include <string>

#include "../io/io.h"

namespace cflow {

struct SpillOptions {
  /// Memory limit of a session's KV cache, in bytes; 0 = no limit.
  uint64_t cache_bytes = 0;
  /// Where the rest goes: a file without a name, which ends with the session.
  std::string directory;
  IoOptions io;
};

struct SpillStats {
  uint64_t bytes_written = 0, bytes_read = 0;
  /// Spent waiting for either, summed over threads.
  double stall_seconds = 0;
  /// Time during which the disk had something to do.
  double busy_seconds = 0;
  /// Why not direct, not io_uring, or not on a disk at all, as of the last session that says so; empty if none does.
  std::string reason;

  SpillStats& operator+=(const SpillStats& other);
  SpillStats operator-(const SpillStats& other) const;
};

/// A file of which nothing is left when its descriptor is closed.
class SpillFile {
 public:
  /// @throws Error WRITE_FAILED
  explicit SpillFile(const std::string& directory);
  SpillFile(const SpillFile&) = delete;
  ~SpillFile();
  int fd() const { return fd_; }
  /// Whether what is written to it takes memory after all.
  bool in_memory() const;

 private:
  int fd_;
};

}  // namespace cflow
