// The software queue that both backends serve.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <string>

#include "file.h"

namespace cflow {

class BlockQueue : public IoQueue {
 public:
  void submit(Transfer& transfer, std::span<const IoRequest> requests, IoPriority priority) override;
  void promote(Transfer& transfer, IoPriority priority) override;
  bool withdraw(Transfer& transfer) override;
  IoStats stats() const override;

 protected:
  /// Blocks go from list to list without allocation; who works on a block has a list with it alone.
  using Blocks = std::list<IoBlock>;

  /// @param reason why not io_uring; empty if it is
  BlockQueue(int fd, const IoOptions& options, std::string reason);

  /// Called with the mutex held: so many blocks were queued, or the queue is closed (0).
  virtual void wake(size_t blocks) = 0;
  /// With the mutex held: moves the most urgent block to `mine`, which is empty. False: nothing is queued.
  bool take(Blocks& mine);
  /// Takes in the answer to the attempt for the block in `mine`. True: the block has ended and `mine` is empty;
  /// else it is to be attempted again.
  bool settle(Blocks& mine, int64_t answer);
  /// Reads or writes a block with the calls that every system has, until it has ended.
  void carry_through(Blocks& mine);
  /// Carries blocks through until the queue is shut.
  void serve();
  /// So many blocks were queued for those who serve, or the queue is closed (0).
  void wake_servers(size_t blocks);
  /// Notes that io_uring serves no longer, and why.
  void fall_back_to_threads(int error) noexcept;
  /// Fails what is queued; nothing is taken any more. The destructor of a backend begins with it.
  void shut();

  mutable std::mutex mutex_;
  bool closed_ = false;
  /// Blocks taken and not ended.
  size_t under_way_ = 0;
  IoFile file_;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kPriorities = 3;

  Blocks cut_all(Transfer& transfer, std::span<const IoRequest> requests) const;
  /// Ends blocks that were never begun.
  static void cancel(Blocks& blocks);

  const uint32_t block_;
  const IoFaults faults_;
  /// Why not io_uring from the start; empty if it was.
  const std::string reason_;
  /// errno that ended io_uring; 0 = none.
  int ring_error_ = 0;
  std::condition_variable work_to_do_;
  std::array<Blocks, kPriorities> queued_;
  uint64_t next_number_ = 0;
  /// Where the file is known to end.
  uint64_t size_;
  IoStats stats_;
  Clock::time_point busy_since_;
};

}  // namespace cflow
