// Reads and writes of a file that run beside the computation: a queue by priority in front of io_uring or threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "../base/error.h"

namespace cflow {

/// Alignment of offsets, lengths and addresses for direct I/O, in bytes.
constexpr uint64_t kIoAlign = 4096;
constexpr uint64_t align_io(uint64_t bytes) { return (bytes + kIoAlign - 1) / kIoAlign * kIoAlign; }

/// What is served first.
enum class IoPriority : uint8_t {
  /// Somebody waits, or will soon.
  needed = 0,
  /// Read ahead of a decision: a prediction, the next stream.
  ahead = 1,
  /// Written out when nothing else is to do.
  spill = 2,
};

/// Requests that are waited for together. Its owner keeps it, and the memory of its requests, until pending() is false.
class Transfer {
 public:
  bool pending() const { return pending_.load(std::memory_order_acquire) != 0; }
  /// errno of the first failure; 0 = none; kEarlyEnd = the file ended before the request. Final when not pending.
  int failure() const { return failure_.load(std::memory_order_relaxed); }
  static constexpr int kEarlyEnd = -1;
  /// Forgets a failure, before the transfer is used again. Only when not pending.
  void reset() { failure_.store(0, std::memory_order_relaxed); }

 private:
  friend class IoQueue;
  /// Blocks that are queued or under way.
  std::atomic<uint32_t> pending_{0};
  std::atomic<int> failure_{0};
};

struct IoRequest {
  enum class Kind : uint8_t { read, write } kind = Kind::read;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint8_t* data = nullptr;
};

enum class IoBackend : uint8_t { automatic = 0, uring = 1, threads = 2 };
enum class IoMode : uint8_t {
  /// O_DIRECT, buffered where the file system refuses it.
  automatic = 0,
  /// Through the page cache, which is left as it was: `PagesRead`.
  buffered = 1,
};

/// For tests: what goes wrong with requests, at random but repeatably.
struct IoFaults {
  uint64_t seed = 0;
  /// Of 1,000 blocks, so many are delayed, cut short (at least a byte is moved), fail with EIO, fail with EINVAL.
  uint32_t delay = 0, cut = 0, error = 0, invalid = 0;
};

struct IoOptions {
  IoBackend backend = IoBackend::automatic;
  IoMode mode = IoMode::automatic;
  /// Requests are cut into blocks of so many bytes; a multiple of 4,096.
  uint32_t block = 1u << 20;
  /// Blocks under way at once: threads, or entries of the ring.
  unsigned depth = 4;
  IoFaults faults;
};

struct IoStats {
  /// Moved so far.
  uint64_t bytes_read = 0, bytes_written = 0;
  uint64_t blocks = 0;
  /// Time during which at least one block was under way.
  double busy_seconds = 0;
  bool direct = false;
  bool uring = false;
  /// Why not direct, or not io_uring, for people; empty if both.
  std::string reason;
};

class IoQueue {
 public:
  /// A queue over the file behind `fd`, which may be closed afterwards.
  /// @throws Error NOT_READABLE, LIMIT_EXCEEDED (threads), MEMORY
  static std::unique_ptr<IoQueue> open(int fd, const IoOptions& options);
  /// Drops what is queued, which fails with ECANCELED, and waits for what is under way.
  virtual ~IoQueue() = default;

  /// Adds requests to a transfer, which may be pending already. Any length and alignment is right; direct I/O needs
  /// offset, length and data to be multiples of 4,096, and whatever is not goes through the page cache. A request that
  /// ends at the end of the file may be longer than what is left, up to the next multiple of 4,096.
  /// Neighbours in file and memory become one. Any thread. @throws Error MEMORY before anything is queued
  virtual void submit(Transfer& transfer, std::span<const IoRequest> requests, IoPriority priority) = 0;
  /// Serves what is queued of a transfer before what is less urgent.
  virtual void promote(Transfer& transfer, IoPriority priority) = 0;
  /// Takes back what is queued and not begun; what is under way goes on, and pending() stays true until it ends.
  /// True if anything was taken back: the memory is not complete then, and the transfer fails with ECANCELED.
  virtual bool withdraw(Transfer& transfer) = 0;
  /// Blocks until the transfer is no longer pending: spins briefly, then parks.
  static void wait(const Transfer& transfer);
  virtual IoStats stats() const = 0;

 protected:
  static void add(Transfer& transfer, uint32_t blocks);
  /// Notes the end of one block; wakes who waits at the last.
  static void finish(Transfer& transfer, int failure);
};

}  // namespace cflow
