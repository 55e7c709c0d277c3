#include "destroyer.h"

#include <utility>

#include "env_state.h"

namespace cflow {

void Destroyer::start() {
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
}

void Destroyer::destroy(std::unique_ptr<Garbage> garbage) noexcept {
  {
    const std::lock_guard lock(mutex_);
    Garbage* added = garbage.get();
    (last_ ? last_->next : first_) = std::move(garbage);
    last_ = added;
  }
  wake_.notify_one();
}

void Destroyer::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Destroyer::work() {
  for (;;) {
    std::unique_ptr<Garbage> garbage;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return first_ || stopping_; });
      if (!first_) return;
      garbage = std::move(first_);
      first_ = std::move(garbage->next);
      if (!first_) last_ = nullptr;
    }
    for (auto& object : garbage->objects) object.reset();
    garbage->session.reset();
    garbage->engine.reset();
    if (garbage->closing) tasks_.finish(garbage->closing);
  }
}

}  // namespace cflow
