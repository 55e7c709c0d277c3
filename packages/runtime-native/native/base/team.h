// A thread and its helpers.
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

/// Waits until `value` is no longer `old`: spins so often, then sleeps.
inline void wait_while(const std::atomic<uint32_t>& value, uint32_t old, int spins) {
  for (int i = 0; i < spins; i++) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

/// Threads that help the one that owns the team, when it calls them. Nothing waits for a helper that has not come.
class Team {
 public:
  /// Starts size - 1 helpers. After a call, each runs help(thread), its thread being 1 or more; once for several calls if it
  /// comes late. `help` must not throw.
  /// @throws Error LIMIT_EXCEEDED if the system refuses a thread
  Team(unsigned size, std::function<void(unsigned)> help);
  Team(const Team&) = delete;
  ~Team();

  /// Helpers and the owner.
  unsigned size() const { return size_; }
  /// How often a thread spins before it sleeps.
  int spins() const { return spins_; }
  void call();

 private:
  void work(unsigned thread);
  void stop();

  const unsigned size_;
  const int spins_;
  const std::function<void(unsigned)> help_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<uint32_t> calls_{0};
};

}  // namespace cflow
