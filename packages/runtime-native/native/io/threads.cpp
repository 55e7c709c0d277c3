#include "threads.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace cflow {

namespace {

int64_t carry_out(const IoAttempt& attempt, IoRequest::Kind kind) {
  const auto offset = static_cast<off_t>(attempt.offset);
  const ssize_t moved = kind == IoRequest::Kind::read ? pread(attempt.fd, attempt.data, attempt.length, offset)
                                                      : pwrite(attempt.fd, attempt.data, attempt.length, offset);
  return moved < 0 ? -errno : moved;
}

}  // namespace

ThreadQueue::ThreadQueue(int fd, const IoOptions& options, std::string reason)
    : BlockQueue(fd, options, std::move(reason)) {
  try {
    for (unsigned i = 0; i < options.depth; i++) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    stop();
    throw Error("LIMIT_EXCEEDED",
                "cannot start " + std::to_string(options.depth) + " threads that read: " + error.what(),
                "allow more threads, or ask for fewer reads at once");
  }
}

ThreadQueue::~ThreadQueue() { stop(); }

void ThreadQueue::stop() {
  shut();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadQueue::wake(size_t blocks) {
  if (blocks == 1) {
    work_to_do_.notify_one();
  } else {
    work_to_do_.notify_all();
  }
}

void ThreadQueue::work() {
  Blocks mine;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      work_to_do_.wait(lock, [&] { return take(mine) || closed_; });
    }
    if (mine.empty()) return;
    IoBlock& block = mine.front();
    while (!settle(mine, carry_out(file_.next(block), block.kind))) {
    }
  }
}

}  // namespace cflow
