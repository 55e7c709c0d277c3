// What functions of the addon share that compute on a thread of the pool.
#pragma once

#include <functional>
#include <memory>

#include "env_state.h"

namespace cflow {

/// Work on a thread of the pool; `Result` becomes what `convert` makes of it.
template <class Result>
class Work : public Napi::AsyncWorker {
 public:
  using Convert = Napi::Value (*)(Napi::Env, const Result&);

  static Napi::Value start(Napi::Env env, std::function<Result()> work, Convert convert) {
    auto* worker = new Work(env, std::move(work), convert);
    const Napi::Promise promise = worker->deferred_.Promise();
    worker->Queue();
    return promise;
  }

  void Execute() override {
    try {
      result_ = work_();
    } catch (const Error& error) {
      error_ = std::make_unique<Error>(error);
    } catch (const std::exception& error) {
      error_ = std::make_unique<Error>(unexpected_error(error));
    }
  }
  void OnOK() override {
    if (error_) return deferred_.Reject(to_js_error(Env(), *error_).Value());
    deferred_.Resolve(convert_(Env(), result_));
  }

 private:
  Work(Napi::Env env, std::function<Result()> work, Convert convert)
      : AsyncWorker(env), deferred_(Napi::Promise::Deferred::New(env)), work_(std::move(work)), convert_(convert) {}

  Napi::Promise::Deferred deferred_;
  std::function<Result()> work_;
  Convert convert_;
  Result result_;
  std::unique_ptr<Error> error_;
};

}  // namespace cflow
