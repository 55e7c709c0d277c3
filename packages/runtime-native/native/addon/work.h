// What functions of the addon share that compute on a thread of their own.
#pragma once

#include <functional>
#include <utility>

#include "tasks.h"

namespace cflow {

/// Work on a thread of its own; `Result` becomes what `convert` makes of it.
template <class Result>
class Work final : public Task {
 public:
  using Convert = Napi::Value (*)(Napi::Env, const Result&);

  /// @throws Error LIMIT_EXCEEDED (threads), MEMORY
  static Napi::Value start(Napi::Env env, std::function<Result()> work, Convert convert) {
    return Tasks::start(env, std::make_unique<Work>(env, std::move(work), convert));
  }
  Work(Napi::Env env, std::function<Result()> work, Convert convert)
      : Task(env), work_(std::move(work)), convert_(convert) {}

 private:
  void execute() override { result_ = work_(); }
  Napi::Value result(Napi::Env env) override { return convert_(env, result_); }

  const std::function<Result()> work_;
  const Convert convert_;
  Result result_;
};

}  // namespace cflow
