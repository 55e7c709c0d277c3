#include "sigbus_watch.h"

#include <chrono>
#include <string>
#include <system_error>

#include "error.h"
#include "sigbus.h"

namespace cflow {

namespace {

constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

SigbusWatch::SigbusWatch() try : thread_([this] { work(); }) {
} catch (const std::system_error& error) {
  throw Error("LIMIT_EXCEEDED", std::string("cannot start the thread that watches a mapped file: ") + error.what(),
              "close other models");
}

SigbusWatch::~SigbusWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void SigbusWatch::begin() noexcept {
  SigbusGuard::keep_installed();
  running_.store(true);
  if (!asleep_.load()) return;
  // Under the mutex the thread is either waiting or has not looked at running_ yet.
  const std::lock_guard lock(mutex_);
  changed_.notify_one();
}

void SigbusWatch::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    asleep_.store(true);
    changed_.wait(lock, [this] { return stopping_ || running_.load(); });
    asleep_.store(false);
    // Tokens follow one another: it sleeps only when none is under way at the end of an interval.
    while (!stopping_ && running_.load()) {
      changed_.wait_for(lock, kInterval, [this] { return stopping_; });
      if (!stopping_ && running_.load()) SigbusGuard::keep_installed();
    }
  }
}

}  // namespace cflow
