#include "threads.h"

#include <system_error>
#include <utility>

namespace cflow {

ThreadQueue::ThreadQueue(int fd, const IoOptions& options, std::string reason)
    : BlockQueue(fd, options, std::move(reason)) {
  try {
    for (unsigned i = 0; i < options.depth; i++) threads_.emplace_back([this] { serve(); });
  } catch (const std::system_error& error) {
    stop();
    throw Error("LIMIT_EXCEEDED",
                "cannot start " + std::to_string(options.depth) + " threads that read: " + error.what(),
                "allow more threads, or ask for fewer reads at once");
  } catch (...) {
    stop();
    throw;
  }
}

ThreadQueue::~ThreadQueue() { stop(); }

void ThreadQueue::stop() {
  shut();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace cflow
