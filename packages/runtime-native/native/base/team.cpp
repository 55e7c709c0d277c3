#include "team.h"

#include <string>
#include <system_error>
#include <utility>

#include "error.h"

namespace cflow {

namespace {

/// Some tens of microseconds, longer than what lies between two calls within a token. With more threads than CPUs, a thread
/// that spins takes the CPU of one that has work.
int spins_for(unsigned threads) { return threads <= std::thread::hardware_concurrency() ? 2000 : 10; }

}  // namespace

Team::Team(unsigned size, std::function<void(unsigned)> help)
    : size_(size), spins_(spins_for(size)), help_(std::move(help)) {
  try {
    threads_.reserve(size - 1);
    for (unsigned i = 1; i < size; i++) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    const size_t started = threads_.size() + 1;
    stop();
    throw Error("LIMIT_EXCEEDED",
                "cannot start thread " + std::to_string(started) + " of " + std::to_string(size) + ": " + error.what(),
                "use fewer threads");
  } catch (...) {
    // Threads that have started use this object.
    stop();
    throw;
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  call();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Team::call() {
  calls_.fetch_add(1, std::memory_order_release);
  calls_.notify_all();
}

void Team::work(unsigned thread) {
  for (uint32_t seen = 0;;) {
    wait_while(calls_, seen, spins_);
    seen = calls_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    help_(thread);
  }
}

}  // namespace cflow
