#include "ring_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

namespace cflow {

namespace {

constexpr uint64_t kBell = UINT64_MAX;

/// So often in a row, a millisecond apart, the kernel may say that it has no means just now.
constexpr uint32_t kMostFailures = 100;

}  // namespace

RingQueue::Bell::Bell() {
#ifdef __linux__
  // Flags and all at once: another thread may start a process at any time.
  const bool opened = pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0;
#else
  const bool opened = false;
#endif
  if (!opened) throw Error("LIMIT_EXCEEDED", "cannot open a pipe: " + std::generic_category().message(errno));
}

RingQueue::Bell::~Bell() {
  for (const int end : ends) close(end);
}

RingQueue::RingQueue(int fd, const IoOptions& options, std::unique_ptr<Ring> ring)
    : BlockQueue(fd, options, ""), ring_(std::move(ring)), slots_(options.depth) {
  for (size_t slot = 0; slot < slots_.size(); slot++) free_.push_back(slot);
  ring_->poll(bell_.ends[0], kBell);
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    throw Error("LIMIT_EXCEEDED", std::string("cannot start the thread that reads: ") + error.what());
  }
}

RingQueue::~RingQueue() {
  shut();
  thread_.join();
  for (std::thread& helper : helpers_) helper.join();
}

void RingQueue::wake(size_t blocks) {
  if (fallen_back_) return wake_servers(blocks);
  if (!std::exchange(asleep_, false)) return;
  const uint8_t ring = 1;
  // A full pipe rings too.
  if (write(bell_.ends[1], &ring, 1) < 0) return;
}

bool RingQueue::fill() {
  const std::lock_guard lock(mutex_);
  while (!free_.empty() && take(slots_[free_.back()])) {
    begin(free_.back());
    free_.pop_back();
  }
  asleep_ = !free_.empty();
  return !closed_ || under_way_ > 0;
}

void RingQueue::begin(size_t slot) {
  IoBlock& block = slots_[slot].front();
  ring_->transfer(file_.next(block), block.kind, slot);
}

void RingQueue::answer(const Ring::Answer& answer) {
  if (answer.tag == kBell) {
    uint8_t rung[16];
    while (read(bell_.ends[0], rung, sizeof rung) > 0) {
    }
    ring_->poll(bell_.ends[0], kBell);
  } else if (settle(slots_[answer.tag], answer.result)) {
    free_.push_back(answer.tag);
  } else {
    begin(answer.tag);
  }
}

void RingQueue::work() {
  uint32_t failures = 0;
  while (fill()) {
    const int error = ring_->enter() ? 0 : errno;
    while (const auto next = ring_->answer()) {
      failures = 0;
      answer(*next);
    }
    if (error == 0 || error == EINTR) continue;
    // What the kernel cannot begin now stays noted, and is tried again for a while.
    const bool passing = error == EAGAIN || error == EBUSY || error == ENOMEM;
    if (!passing || ++failures > kMostFailures) return fall_back(error);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void RingQueue::fall_back(int error) {
  std::vector<size_t> left;
  left.swap(free_);
  left.clear();
  while (const auto tag = ring_->take_back()) {
    if (*tag != kBell) left.push_back(static_cast<size_t>(*tag));
  }
  const auto waits = [&](size_t slot) { return std::find(left.begin(), left.end(), slot) != left.end(); };
  // The kernel writes where the blocks say until it has answered for those that it began.
  const auto begun = [&] {
    for (size_t slot = 0; slot < slots_.size(); slot++) {
      if (!slots_[slot].empty() && !waits(slot)) return true;
    }
    return false;
  };
  while (begun()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    while (const auto next = ring_->answer()) {
      const auto slot = static_cast<size_t>(next->tag);
      if (next->tag != kBell && !settle(slots_[slot], next->result)) left.push_back(slot);
    }
  }
  fall_back_to_threads(error);
  {
    const std::lock_guard lock(mutex_);
    fallen_back_ = true;
  }
  try {
    while (helpers_.size() + 1 < slots_.size()) helpers_.emplace_back([this] { serve(); });
  } catch (const std::exception&) {
    // As many as there are: this thread is one.
  }
  for (const size_t slot : left) carry_through(slots_[slot]);
  serve();
}

}  // namespace cflow
