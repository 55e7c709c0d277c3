// A queue whose reads end when the test says, and that knows which memory is being read into.
#pragma once

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../tiers/fetch.h"
#include "engine-model.h"

namespace tier_test {

using namespace cflow;
using engine_test::check;

/// The byte that belongs at a place of the file. Never 0xee: that means that it is not there yet.
inline uint8_t byte_at(uint64_t place) { return static_cast<uint8_t>((place * 2654435761u >> 13) % 200); }

/// Of the Error that `work` throws; empty if it throws none.
inline std::string code_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const Error& error) {
    return error.code();
  }
}

inline bool right(const uint8_t* data, const FetchRegion& region) {
  for (uint64_t i = 0; i < region.length; i++) {
    if (data[i] != byte_at(region.offset + i)) return false;
  }
  return true;
}

/// Reads are queued until `finish` or, when `automatic`, until a thread gets to them, slowly and in a random order.
class SlowQueue final : public IoQueue {
 public:
  explicit SlowQueue(bool automatic = false, uint64_t seed = 1) : seed_(seed) {
    if (automatic) server_ = std::thread([this] { serve(); });
  }
  ~SlowQueue() override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    wake_.notify_all();
    if (server_.joinable()) server_.join();
  }

  void submit(Transfer& transfer, std::span<const IoRequest> requests, IoPriority priority) override {
    if (refuse) throw Error("MEMORY", "refused");
    const std::lock_guard lock(mutex_);
    for (const IoRequest& request : requests) {
      for (const Entry& other : entries_) {
        const bool apart = request.data + request.length <= other.request.data ||
                           other.request.data + other.request.length <= request.data;
        check(apart, "memory that is being read into is not given to another read");
      }
      check(request.offset % kIoAlign == 0 && request.length % kIoAlign == 0 &&
                reinterpret_cast<uintptr_t>(request.data) % kIoAlign == 0,
            "reads are aligned");
      std::memset(request.data, 0xee, request.length);
      add(transfer, 1);
      entries_.push_back({&transfer, request, priority, false});
      submitted++;
    }
    wake_.notify_all();
  }
  void promote(Transfer& transfer, IoPriority priority) override {
    const std::lock_guard lock(mutex_);
    for (Entry& entry : entries_) {
      if (entry.transfer == &transfer) entry.priority = std::min(entry.priority, priority);
    }
  }
  bool withdraw(Transfer& transfer) override {
    std::deque<Entry> taken;
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = 0; i < entries_.size();) {
        if (entries_[i].transfer != &transfer || entries_[i].begun) {
          i++;
          continue;
        }
        taken.push_back(entries_[i]);
        entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    for (const Entry& entry : taken) IoQueue::finish(*entry.transfer, ECANCELED);
    return !taken.empty();
  }
  IoStats stats() const override { return {}; }

  /// Nothing that is queued now can be taken back.
  void begin_all() {
    const std::lock_guard lock(mutex_);
    for (Entry& entry : entries_) entry.begun = true;
  }
  /// The first page of a read is begun, and the rest can be taken back.
  void split_and_begin(uint64_t offset) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < entries_.size(); i++) {
      if (entries_[i].request.offset != offset) continue;
      Entry rest = entries_[i];
      entries_[i].request.length = kIoAlign;
      entries_[i].begun = true;
      rest.request.offset += kIoAlign;
      rest.request.data += kIoAlign;
      rest.request.length -= kIoAlign;
      add(*rest.transfer, 1);
      entries_.push_back(rest);
      return;
    }
  }
  /// Ends the reads of a place, or all.
  void finish(uint64_t offset = UINT64_MAX, int failure = 0) {
    std::deque<Entry> ended;
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = 0; i < entries_.size();) {
        if (offset != UINT64_MAX && entries_[i].request.offset != offset) {
          i++;
          continue;
        }
        ended.push_back(entries_[i]);
        entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    for (const Entry& entry : ended) end(entry, failure);
  }
  /// Offsets that are queued or being read, in order of the calls.
  std::vector<uint64_t> waiting() const {
    const std::lock_guard lock(mutex_);
    std::vector<uint64_t> offsets;
    for (const Entry& entry : entries_) offsets.push_back(entry.request.offset);
    return offsets;
  }
  std::vector<IoPriority> priorities() const {
    const std::lock_guard lock(mutex_);
    std::vector<IoPriority> all;
    for (const Entry& entry : entries_) all.push_back(entry.priority);
    return all;
  }

  std::atomic<int> submitted{0};
  /// Whether submit fails.
  std::atomic<bool> refuse{false};
  /// Of 1,000 reads that the thread serves, so many fail.
  uint32_t failures = 0;

 private:
  struct Entry {
    Transfer* transfer;
    IoRequest request;
    IoPriority priority;
    bool begun;
  };

  static void end(const Entry& entry, int failure) {
    if (!failure) {
      for (uint64_t i = 0; i < entry.request.length; i++) entry.request.data[i] = byte_at(entry.request.offset + i);
    }
    IoQueue::finish(*entry.transfer, failure);
  }

  uint64_t random() {
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return seed_ >> 33;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return closed_ || !entries_.empty(); });
      if (entries_.empty()) return;
      // It stays listed until it has ended: its memory is being written.
      Entry& chosen = entries_[random() % entries_.size()];
      chosen.begun = true;
      const Entry entry = chosen;
      const uint64_t pause = random() % 100;
      const int failure = random() % 1000 < failures ? EIO : 0;
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(pause));
      if (!failure) {
        for (uint64_t i = 0; i < entry.request.length; i++) entry.request.data[i] = byte_at(entry.request.offset + i);
      }
      lock.lock();
      std::erase_if(entries_, [&](const Entry& other) {
        return other.transfer == entry.transfer && other.request.data == entry.request.data;
      });
      IoQueue::finish(*entry.transfer, failure);
    }
  }

  uint64_t seed_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Entry> entries_;
  bool closed_ = false;
  std::thread server_;
};

}  // namespace tier_test
