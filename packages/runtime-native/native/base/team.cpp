#include "team.h"

#include <string>
#include <system_error>

#include "error.h"

namespace cflow {

namespace {

/// Some tens of microseconds, about the imbalance of a barrier. With more threads than cores, whoever spins keeps
/// another from arriving.
int spins_for(unsigned threads) { return threads <= std::thread::hardware_concurrency() ? 2000 : 10; }

}  // namespace

Team::Team(unsigned threads) : size_(threads), spins_(spins_for(threads)) {
  try {
    threads_.reserve(threads - 1);
    for (unsigned i = 1; i < threads; i++) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    const size_t started = threads_.size() + 1;
    stop();
    throw Error("LIMIT_EXCEEDED",
                "cannot start thread " + std::to_string(started) + " of " + std::to_string(threads) + ": " + error.what(),
                "use fewer threads");
  } catch (...) {
    // No memory for a thread: those that wait would outlive this.
    stop();
    throw;
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Team::run(const std::function<void(unsigned)>& body) {
  body_ = &body;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  body(0);
  meet([] {});
}

void Team::work(unsigned thread) {
  // Before the first job; a thread that starts late must not take a job for the state it found.
  uint32_t seen = 0;
  while (true) {
    wait_while(job_, seen, spins_);
    seen++;
    if (stopping_.load(std::memory_order_relaxed)) return;
    (*body_)(thread);
    meet([] {});
  }
}

}  // namespace cflow
