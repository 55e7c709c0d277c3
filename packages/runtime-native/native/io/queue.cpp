#include "queue.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "../base/team.h"
#include "faults.h"

namespace cflow {

namespace {

uint64_t align_down(uint64_t at) { return at / kIoAlign * kIoAlign; }

bool follows(const IoRequest& first, const IoRequest& second) {
  return first.kind == second.kind && first.offset + first.length == second.offset &&
         first.data + first.length == second.data;
}

/// Length of the first block of a request: ends on a boundary of direct I/O if it reaches one.
uint64_t first_block(const IoRequest& request, uint64_t block) {
  const uint64_t end = request.offset + std::min(request.length, block);
  const uint64_t boundary = align_down(end);
  return (boundary > request.offset ? boundary : end) - request.offset;
}

/// Who waits for a transfer sleeps on one of these, not on the transfer: its owner may free it at the moment that
/// nothing is pending, before the last block's thread has woken anybody.
struct alignas(64) Epoch {
  std::atomic<uint32_t> count{0};
};
Epoch epochs[16];

std::atomic<uint32_t>& epoch_of(const Transfer& transfer) {
  return epochs[reinterpret_cast<uintptr_t>(&transfer) / alignof(Epoch) % std::size(epochs)].count;
}

constexpr int kSpins = 2000;

int64_t carry_out(const IoAttempt& attempt, IoRequest::Kind kind) {
  const auto offset = static_cast<off_t>(attempt.offset);
  const ssize_t moved = kind == IoRequest::Kind::read ? pread(attempt.fd, attempt.data, attempt.length, offset)
                                                      : pwrite(attempt.fd, attempt.data, attempt.length, offset);
  return moved < 0 ? -errno : moved;
}

}  // namespace

void IoQueue::add(Transfer& transfer, uint32_t blocks) {
  transfer.pending_.fetch_add(blocks, std::memory_order_relaxed);
}

void IoQueue::finish(Transfer& transfer, int failure) {
  int none = 0;
  if (failure) transfer.failure_.compare_exchange_strong(none, failure, std::memory_order_relaxed);
  std::atomic<uint32_t>& epoch = epoch_of(transfer);
  if (transfer.pending_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  epoch.fetch_add(1, std::memory_order_release);
  epoch.notify_all();
}

void IoQueue::wait(const Transfer& transfer) {
  for (int i = 0; i < kSpins && transfer.pending(); i++) relax();
  std::atomic<uint32_t>& epoch = epoch_of(transfer);
  for (;;) {
    const uint32_t before = epoch.load(std::memory_order_acquire);
    if (!transfer.pending()) return;
    epoch.wait(before, std::memory_order_acquire);
  }
}

BlockQueue::BlockQueue(int fd, const IoOptions& options, std::string reason)
    : file_(fd, options.mode),
      block_(options.block),
      faults_(options.faults),
      reason_(std::move(reason)),
      size_(file_.size()) {}

BlockQueue::Blocks BlockQueue::cut_all(Transfer& transfer, std::span<const IoRequest> requests) const {
  Blocks blocks;
  const auto cut = [&](IoRequest rest) {
    while (rest.length) {
      const uint64_t length = first_block(rest, block_);
      IoBlock& block = blocks.emplace_back();
      block.transfer = &transfer;
      block.kind = rest.kind;
      block.offset = rest.offset;
      block.length = block.needed = length;
      block.data = rest.data;
      rest.offset += length;
      rest.length -= length;
      rest.data += length;
    }
  };
  IoRequest whole;
  for (const IoRequest& request : requests) {
    if (whole.length && follows(whole, request)) {
      whole.length += request.length;
    } else {
      cut(std::exchange(whole, request));
    }
  }
  cut(whole);
  return blocks;
}

void BlockQueue::submit(Transfer& transfer, std::span<const IoRequest> requests, IoPriority priority) {
  Blocks blocks;
  try {
    blocks = cut_all(transfer, requests);
  } catch (const std::bad_alloc&) {
    throw Error("MEMORY", "reads of " + std::to_string(requests.size()) + " places: the system refused memory");
  }
  if (blocks.empty()) return;
  const size_t count = blocks.size();
  add(transfer, static_cast<uint32_t>(count));
  const std::lock_guard lock(mutex_);
  for (IoBlock& block : blocks) {
    block.number = next_number_++;
    const uint64_t end = block.offset + block.length;
    const bool last = block.offset < size_ && size_ < end && end <= align_io(size_);
    if (block.kind == IoRequest::Kind::read && last) block.needed = size_ - block.offset;
  }
  Blocks& list = queued_[static_cast<size_t>(priority)];
  list.splice(list.end(), blocks);
  wake(count);
}

void BlockQueue::promote(Transfer& transfer, IoPriority priority) {
  const std::lock_guard lock(mutex_);
  Blocks& urgent = queued_[static_cast<size_t>(priority)];
  for (size_t lower = static_cast<size_t>(priority) + 1; lower < kPriorities; lower++) {
    for (auto at = queued_[lower].begin(); at != queued_[lower].end();) {
      const auto block = at++;
      if (block->transfer == &transfer) urgent.splice(urgent.end(), queued_[lower], block);
    }
  }
}

bool BlockQueue::withdraw(Transfer& transfer) {
  Blocks taken;
  {
    const std::lock_guard lock(mutex_);
    for (Blocks& list : queued_) {
      for (auto at = list.begin(); at != list.end();) {
        const auto block = at++;
        if (block->transfer == &transfer) taken.splice(taken.end(), list, block);
      }
    }
  }
  const bool any = !taken.empty();
  cancel(taken);
  return any;
}

void BlockQueue::cancel(Blocks& blocks) {
  for (const IoBlock& block : blocks) finish(*block.transfer, ECANCELED);
}

bool BlockQueue::take(Blocks& mine) {
  if (closed_) return false;
  const auto list = std::find_if(queued_.begin(), queued_.end(), [](const Blocks& blocks) { return !blocks.empty(); });
  if (list == queued_.end()) return false;
  mine.splice(mine.begin(), *list, list->begin());
  if (under_way_++ == 0) busy_since_ = Clock::now();
  return true;
}

bool BlockQueue::settle(Blocks& mine, int64_t answer) {
  IoBlock& block = mine.front();
  const std::optional<int> end = file_.settle(block, inject(faults_, block, answer));
  if (!end) return false;
  {
    const std::lock_guard lock(mutex_);
    if (--under_way_ == 0) stats_.busy_seconds += std::chrono::duration<double>(Clock::now() - busy_since_).count();
    const bool read = block.kind == IoRequest::Kind::read;
    (read ? stats_.bytes_read : stats_.bytes_written) += block.done;
    stats_.blocks++;
    if (!read) size_ = std::max(size_, block.offset + block.done);
  }
  // Last: the owner may free the transfer and the memory from here on.
  finish(*block.transfer, *end);
  mine.clear();
  return true;
}

void BlockQueue::carry_through(Blocks& mine) {
  for (bool ended = false; !ended;) {
    IoBlock& block = mine.front();
    ended = settle(mine, carry_out(file_.next(block), block.kind));
  }
}

void BlockQueue::serve() {
  Blocks mine;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      work_to_do_.wait(lock, [&] { return take(mine) || closed_; });
    }
    if (mine.empty()) return;
    carry_through(mine);
  }
}

void BlockQueue::wake_servers(size_t blocks) {
  if (blocks == 1) {
    work_to_do_.notify_one();
  } else {
    work_to_do_.notify_all();
  }
}

void BlockQueue::fall_back_to_threads(int error) noexcept {
  const std::lock_guard lock(mutex_);
  ring_error_ = error;
}

void BlockQueue::shut() {
  Blocks dropped;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (Blocks& list : queued_) dropped.splice(dropped.end(), list);
    wake(0);
  }
  cancel(dropped);
}

IoStats BlockQueue::stats() const {
  const std::lock_guard lock(mutex_);
  IoStats stats = stats_;
  if (under_way_) stats.busy_seconds += std::chrono::duration<double>(Clock::now() - busy_since_).count();
  stats.direct = file_.direct();
  stats.uring = reason_.empty() && ring_error_ == 0;
  stats.reason = file_.reason();
  if (!stats.reason.empty() && !stats.uring) stats.reason += "; ";
  stats.reason += reason_;
  if (ring_error_) stats.reason += "io_uring: refused while in use: " + std::generic_category().message(ring_error_);
  return stats;
}

}  // namespace cflow
