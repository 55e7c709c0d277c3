// The backend that every system has: threads that read and write.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "queue.h"

namespace cflow {

class ThreadQueue final : public BlockQueue {
 public:
  /// @throws Error NOT_READABLE, LIMIT_EXCEEDED
  ThreadQueue(int fd, const IoOptions& options, std::string reason);
  ~ThreadQueue() override;

 private:
  void wake(size_t blocks) override { wake_servers(blocks); }
  void stop();

  std::vector<std::thread> threads_;
};

}  // namespace cflow
