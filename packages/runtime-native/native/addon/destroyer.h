// Destruction off the JavaScript thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace cflow {

class Task;
class Tasks;
struct EngineCore;
struct SessionCore;

/// What is to be destroyed: a session before its engine. Made in time, so that whoever gives it away need not allocate.
struct Garbage {
  std::vector<std::shared_ptr<void>> objects;
  std::shared_ptr<SessionCore> session;
  std::shared_ptr<EngineCore> engine;
  /// Finished when all of it is gone; null = nobody waits.
  Task* closing = nullptr;
  std::unique_ptr<Garbage> next;
};

/// One thread that destroys what it is given, in order: destruction waits for what runs, so it must hold up neither the
/// event loop nor a garbage collection.
class Destroyer {
 public:
  explicit Destroyer(Tasks& tasks) : tasks_(tasks) {}
  Destroyer(const Destroyer&) = delete;
  ~Destroyer() { stop(); }

  /// Starts the thread, if there is none. @throws std::system_error
  void start();
  /// After `start`. Allocates nothing.
  void destroy(std::unique_ptr<Garbage> garbage) noexcept;
  /// Destroys what is left, and ends the thread.
  void stop() noexcept;

 private:
  void work();

  Tasks& tasks_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::unique_ptr<Garbage> first_;
  Garbage* last_ = nullptr;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace cflow
