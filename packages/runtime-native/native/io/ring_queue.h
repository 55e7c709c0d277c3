// The backend over io_uring: one thread that begins blocks and takes their answers. If the kernel comes to refuse the ring,
// which a sandbox may do at any time, threads take over.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "queue.h"
#include "ring.h"

namespace cflow {

class RingQueue final : public BlockQueue {
 public:
  /// @throws Error NOT_READABLE, LIMIT_EXCEEDED
  RingQueue(int fd, const IoOptions& options, std::unique_ptr<Ring> ring);
  ~RingQueue() override;

 private:
  /// A pipe: what wakes the thread from the ring. Closed after the thread has ended.
  struct Bell {
    Bell();
    ~Bell();
    int ends[2];
  };

  void wake(size_t blocks) override;
  void work();
  /// Begins what is queued as far as slots are free. False: closed, and nothing is under way.
  bool fill();
  void begin(size_t slot);
  void answer(const Ring::Answer& answer);
  /// The ring has failed for good: threads read and write instead, this one among them, until the queue is shut.
  void fall_back(int error);

  /// Only this thread begins operations: those of a thread that ends are cancelled by the kernel.
  std::unique_ptr<Ring> ring_;
  Bell bell_;
  std::vector<Blocks> slots_;
  std::vector<size_t> free_;
  /// The thread waits and could begin more.
  bool asleep_ = false;
  bool fallen_back_ = false;
  /// Of the thread below, until it ends.
  std::vector<std::thread> helpers_;
  std::thread thread_;
};

}  // namespace cflow
