// Threads that work on one thing together and meet at barriers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace cflow {

/// Tells the core that this is a waiting loop.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits until `value` is no longer `old`: spins so often, then parks.
inline void wait_while(const std::atomic<uint32_t>& value, uint32_t old, int spins) {
  for (int i = 0; i < spins; i++) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

class Team {
 public:
  /// Starts threads - 1 threads; the caller of `run` is the first.
  /// @throws Error LIMIT_EXCEEDED if the system refuses one
  explicit Team(unsigned threads);
  Team(const Team&) = delete;
  ~Team();

  unsigned size() const { return size_; }

  /// Runs body(thread) on every thread, thread 0 being the caller; returns when all have ended. It must not throw.
  void run(const std::function<void(unsigned)>& body);

  /// Inside a body: waits for all threads. The last to arrive calls `last` before the others go on.
  template <typename Last>
  void meet(Last&& last) {
    const uint32_t generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      last();
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      generation_.notify_all();
    } else {
      wait_while(generation_, generation, spins_);
    }
  }

 private:
  void work(unsigned thread);
  void stop();

  const unsigned size_;
  const int spins_;
  std::vector<std::thread> threads_;
  const std::function<void(unsigned)>* body_ = nullptr;
  /// Counts calls of `run`; the threads wait for it to move.
  std::atomic<uint32_t> job_{0};
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

}  // namespace cflow
