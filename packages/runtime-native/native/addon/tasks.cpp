#include "tasks.h"

#include <utility>

namespace cflow {

namespace {

void check(Napi::Env env, napi_status status) {
  if (status != napi_ok) throw Napi::Error::New(env);
}

}  // namespace

void Tasks::create(Napi::Env env, const std::shared_ptr<Tasks>& tasks) {
  tasks->env_ = env;
  const auto name = Napi::String::New(env, "cflow");
  check(env, napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, tasks.get(), on_wake,
                                             &tasks->wake_));
  check(env, napi_unref_threadsafe_function(env, tasks->wake_));
  // The environment owns the tasks; hooks run in reverse order, so this one before that of the wake function.
  env.SetInstanceData(new std::shared_ptr<Tasks>(tasks));
  check(env, napi_add_env_cleanup_hook(env, on_teardown, tasks.get()));
}

Napi::Promise Tasks::start(Napi::Env env, std::unique_ptr<Task> owned) {
  Tasks& tasks = of(env);
  const Napi::Promise promise = owned->promise();
  Task* task = tasks.begin(std::move(owned));
  try {
    task->thread_ = std::thread([&tasks, task] {
      try {
        task->execute();
      } catch (...) {
        task->error = current_error();
      }
      tasks.finish(task);
    });
  } catch (...) {
    tasks.abandon(task);
    throw;
  }
  return promise;
}

Task* Tasks::begin(std::unique_ptr<Task> task) {
  Task* key = task.get();
  tasks_.emplace(key, std::move(task));
  if (tasks_.size() == 1) napi_ref_threadsafe_function(env_, wake_);
  const std::lock_guard lock(mutex_);
  running_++;
  return key;
}

void Tasks::abandon(Task* task) {
  tasks_.erase(task);
  if (tasks_.empty()) napi_unref_threadsafe_function(env_, wake_);
  const std::lock_guard lock(mutex_);
  running_--;
}

void Tasks::finish(Task* task) noexcept {
  const std::lock_guard lock(mutex_);
  const bool first = finished_ == nullptr;
  task->next_ = std::exchange(finished_, task);
  // One call serves all that have ended by the time that it arrives.
  if (first) napi_call_threadsafe_function(wake_, nullptr, napi_tsfn_nonblocking);
  if (--running_ == 0) idle_.notify_all();
}

void Tasks::on_wake(napi_env env, napi_value, void* context, void*) {
  if (env == nullptr) return;
  static_cast<Tasks*>(context)->settle_finished(Napi::Env(env));
}

void Tasks::settle_finished(Napi::Env env) {
  Task* last = nullptr;
  {
    const std::lock_guard lock(mutex_);
    last = std::exchange(finished_, nullptr);
  }
  // In the order in which they ended.
  Task* first = nullptr;
  while (last) last = std::exchange(last->next_, std::exchange(first, last));
  const Napi::HandleScope scope(env);
  while (first) {
    const auto node = tasks_.extract(std::exchange(first, first->next_));
    if (node.mapped()->thread_.joinable()) node.mapped()->thread_.join();
    try {
      settle(env, *node.mapped());
    } catch (...) {
      // The environment is ending: nobody waits for the promise.
    }
  }
  if (tasks_.empty()) napi_unref_threadsafe_function(env_, wake_);
}

void Tasks::settle(Napi::Env env, Task& task) {
  task.ended(env);
  if (task.error) return task.deferred_.Reject(to_js_error(env, *task.error).Value());
  Napi::Value result;
  try {
    result = guarded(env, [&] { return task.result(env); });
  } catch (const Napi::Error& error) {
    return task.deferred_.Reject(error.Value());
  }
  task.deferred_.Resolve(result);
}

/// Ends what runs, so that no thread touches this environment afterwards.
void Tasks::on_teardown(void* raw) {
  const auto tasks = static_cast<Tasks*>(raw)->shared_from_this();
  tasks->ending_ = true;
  tasks->end();
  {
    std::unique_lock lock(tasks->mutex_);
    tasks->idle_.wait(lock, [&] { return tasks->running_ == 0; });
    tasks->finished_ = nullptr;
  }
  for (auto& [key, task] : tasks->tasks_) {
    if (task->thread_.joinable()) task->thread_.join();
  }
  tasks->tasks_.clear();
  napi_release_threadsafe_function(tasks->wake_, napi_tsfn_abort);
}

}  // namespace cflow
