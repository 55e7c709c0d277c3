// Which queue a file gets.
#include "ring_queue.h"
#include "threads.h"

namespace cflow {

namespace {

constexpr unsigned kMaxDepth = 1024;

void require(bool holds, const char* what) {
  if (!holds) throw Error("LIMIT_EXCEEDED", what);
}

}  // namespace

std::unique_ptr<IoQueue> IoQueue::open(int fd, const IoOptions& options) {
  require(options.block > 0 && options.block % kIoAlign == 0, "a disk queue has blocks of a multiple of 4096 bytes");
  require(options.depth >= 1 && options.depth <= kMaxDepth, "a disk queue has 1 to 1024 blocks under way");
  std::string reason = "io_uring: threads were asked for";
  if (options.backend != IoBackend::threads) {
    if (auto ring = Ring::create(options.depth + 1, reason)) {
      return std::make_unique<RingQueue>(fd, options, std::move(ring));
    }
  }
  return std::make_unique<ThreadQueue>(fd, options, std::move(reason));
}

}  // namespace cflow
