#include "ring_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

namespace cflow {

namespace {

constexpr uint64_t kBell = UINT64_MAX;

}  // namespace

RingQueue::Bell::Bell() {
  if (pipe(ends) != 0) throw Error("LIMIT_EXCEEDED", "cannot open a pipe: " + std::generic_category().message(errno));
  for (const int end : ends) {
    fcntl(end, F_SETFD, FD_CLOEXEC);
    fcntl(end, F_SETFL, O_NONBLOCK);
  }
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
}

void RingQueue::wake(size_t) {
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
  while (fill()) {
    // What the kernel cannot begin now stays noted, and is tried again.
    if (!ring_->enter() && errno != EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    while (const auto next = ring_->answer()) answer(*next);
  }
}

}  // namespace cflow
