// What the addon keeps for one JavaScript environment (the main thread, or one worker): nothing is global.
#pragma once

#include <napi.h>

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "../engine/engine.h"

namespace cflow {

/// A native session and what the JavaScript side knows of it. Lives on the JavaScript thread.
struct SessionCore {
  std::shared_ptr<Session> session;
  /// A job has been submitted and has not settled.
  bool busy = false;
  /// Where jobs write; copied into the caller's array at the end, which may have been detached meanwhile.
  std::vector<float> logits;
  /// Bytes reported to V8.
  int64_t reported = 0;
};

/// A native engine and its sessions. Lives on the JavaScript thread.
struct EngineCore {
  std::shared_ptr<Engine> engine;
  std::vector<std::weak_ptr<SessionCore>> sessions;
  uint32_t vocab_size = 0;
  /// Elements that a token gives.
  uint32_t output_length = 0;
  int64_t reported = 0;

  /// Cancels every job and gives up the engine: what must be destroyed, in order, which may block.
  std::vector<std::shared_ptr<void>> take();
};

/// A job under way. JavaScript references in it are touched on the JavaScript thread only.
struct PendingJob {
  PendingJob(Napi::Env env, std::shared_ptr<SessionCore> session, Napi::Float32Array target, Napi::Object handle)
      : deferred(Napi::Promise::Deferred::New(env)),
        session(std::move(session)),
        target(Napi::Persistent(target.As<Napi::Object>())),
        handle(Napi::Persistent(handle)) {}

  Napi::Promise::Deferred deferred;
  std::shared_ptr<SessionCore> session;
  Napi::ObjectReference target;
  /// Keeps the session's JavaScript object, and so the session, alive.
  Napi::ObjectReference handle;
  std::unique_ptr<Error> error;
};

class EnvState : public std::enable_shared_from_this<EnvState> {
 public:
  static std::shared_ptr<EnvState> create(Napi::Env env);
  static EnvState& of(Napi::Env env);

  Napi::FunctionReference engine_constructor;
  Napi::FunctionReference session_constructor;

  /// Whether the environment is ending: JavaScript cannot be called any more.
  bool ending() const { return ending_; }
  void add_engine(const std::shared_ptr<EngineCore>& core);

  /// Takes over a job; the event loop stays alive until it has settled. JavaScript thread.
  PendingJob* begin(std::unique_ptr<PendingJob> job);
  /// The job has ended (with job->error, if that is set). Any thread.
  void finish(PendingJob* job);
  /// Destroys on a thread of its own: for finalizers, which must not block. JavaScript thread.
  void destroy_later(std::vector<std::shared_ptr<void>> garbage);

 private:
  static void on_wake(napi_env env, napi_value callback, void* context, void* data);
  static void on_teardown(void* state);
  void settle_finished(Napi::Env env);
  void settle(Napi::Env env, PendingJob& job);

  napi_env env_ = nullptr;
  napi_threadsafe_function wake_ = nullptr;
  bool ending_ = false;
  std::unordered_map<PendingJob*, std::unique_ptr<PendingJob>> jobs_;
  std::vector<std::weak_ptr<EngineCore>> engines_;
  std::list<std::thread> destroyers_;

  std::mutex mutex_;
  std::condition_variable idle_;
  size_t running_ = 0;
  std::vector<PendingJob*> finished_;
};

/// Destroys native objects on a worker thread and resolves a promise; destruction may wait for running jobs.
class DestroyWorker : public Napi::AsyncWorker {
 public:
  static Napi::Promise start(Napi::Env env, std::vector<std::shared_ptr<void>> garbage);
  void Execute() override;
  void OnOK() override;

 private:
  DestroyWorker(Napi::Env env, std::vector<std::shared_ptr<void>> garbage)
      : Napi::AsyncWorker(env), deferred_(Napi::Promise::Deferred::New(env)), garbage_(std::move(garbage)) {}

  Napi::Promise::Deferred deferred_;
  std::vector<std::shared_ptr<void>> garbage_;
};

/// An Error with `code` and `remedy`, for the TypeScript side to turn into a CflowError.
Napi::Error to_js_error(Napi::Env env, const char* code, const std::string& problem, const std::string& remedy = "");
Napi::Error to_js_error(Napi::Env env, const Error& error);
/// What a C++ exception that is no Error of ours becomes.
Error unexpected_error(const std::exception& error);

/// Runs `body` on the JavaScript thread; native exceptions become JavaScript ones.
template <typename Body>
auto guarded(Napi::Env env, Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const Napi::Error&) {
    throw;
  } catch (const Error& error) {
    throw to_js_error(env, error);
  } catch (const std::exception& error) {
    throw to_js_error(env, unexpected_error(error));
  }
}

}  // namespace cflow
