// Native work under way in one JavaScript environment (the main thread, or one worker), and the promises of it. Long work has
// threads of its own: libuv's pool is four threads, which files and DNS need.
#pragma once

#include <napi.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "errors.h"

namespace cflow {

/// A promise of native work. Made, settled and destroyed on the JavaScript thread.
class Task {
 public:
  explicit Task(Napi::Env env) : deferred_(Napi::Promise::Deferred::New(env)) {}
  virtual ~Task() = default;
  Napi::Promise promise() const { return deferred_.Promise(); }

  /// Set by whoever does the work before it calls Tasks::finish: the promise rejects.
  std::optional<Error> error;

 protected:
  /// The work of a task that was started with Tasks::start, on its thread. What it throws becomes `error`.
  virtual void execute() {}
  /// What the promise resolves with. JavaScript thread, once the work has ended without an error.
  virtual Napi::Value result(Napi::Env env) { return env.Undefined(); }
  /// The work has ended, with or without. JavaScript thread.
  virtual void ended(Napi::Env) {}

 private:
  friend class Tasks;
  const Napi::Promise::Deferred deferred_;
  std::thread thread_;
  /// The task that ended before.
  Task* next_ = nullptr;
};

/// The tasks of an environment. `create` in the addon's init makes it the instance data.
class Tasks : public std::enable_shared_from_this<Tasks> {
 public:
  Tasks() = default;
  Tasks(const Tasks&) = delete;
  virtual ~Tasks() = default;
  /// @throws JavaScript Error
  static void create(Napi::Env env, const std::shared_ptr<Tasks>& tasks);
  static Tasks& of(Napi::Env env) { return **env.GetInstanceData<std::shared_ptr<Tasks>>(); }

  /// Runs task->execute() on a thread of its own. JavaScript thread. @throws Error LIMIT_EXCEEDED (threads), MEMORY
  static Napi::Promise start(Napi::Env env, std::unique_ptr<Task> task);

  /// Whether the environment is ending: JavaScript cannot be called any more.
  bool ending() const { return ending_; }

  /// Takes over a task that somebody will finish; the event loop stays alive until it has settled. JavaScript thread.
  Task* begin(std::unique_ptr<Task> task);
  /// Takes a task back that nobody will finish. JavaScript thread.
  void abandon(Task* task);
  /// The work of a task has ended. Any thread; allocates nothing.
  void finish(Task* task) noexcept;

 protected:
  /// The environment ends: no work may go on, or touch it, afterwards.
  virtual void end() {}

 private:
  static void on_wake(napi_env env, napi_value callback, void* context, void* data);
  static void on_teardown(void* tasks);
  void settle_finished(Napi::Env env);
  void settle(Napi::Env env, Task& task);

  napi_env env_ = nullptr;
  napi_threadsafe_function wake_ = nullptr;
  bool ending_ = false;
  std::unordered_map<Task*, std::unique_ptr<Task>> tasks_;

  std::mutex mutex_;
  std::condition_variable idle_;
  size_t running_ = 0;
  /// The last that ended; each knows the one before it.
  Task* finished_ = nullptr;
};

}  // namespace cflow
