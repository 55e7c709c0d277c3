// Keeps the SIGBUS handler in place while mapped weights are read.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace cflow {

/// A handler that something else installs during a batch (process.on('SIGBUS'), another addon) is called for a page fault
/// of the engine's. If it returns, the same read faults again, without end, and may keep the event loop busy too. So a
/// thread of its own puts the engine's handler back a few times a second, while a batch runs.
class SigbusWatch {
 public:
  /// @throws Error LIMIT_EXCEEDED if the system refuses a thread
  SigbusWatch();
  SigbusWatch(const SigbusWatch&) = delete;
  ~SigbusWatch();

  /// A batch begins: puts the handler back at once, too. Costs a system call.
  void begin() noexcept;
  void end() noexcept { running_.store(false, std::memory_order_relaxed); }

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> running_{false};
  /// The thread sleeps until it is told of a batch.
  std::atomic<bool> asleep_{false};
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace cflow
