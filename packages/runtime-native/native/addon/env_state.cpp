#include "env_state.h"

#include <cstring>
#include <new>

namespace cflow {

std::vector<std::shared_ptr<void>> EngineCore::take() {
  std::vector<std::shared_ptr<void>> garbage;
  for (const auto& weak : sessions) {
    const auto core = weak.lock();
    if (!core || !core->session) continue;
    core->session->cancel();
    garbage.push_back(std::move(core->session));
  }
  sessions.clear();
  if (engine) garbage.push_back(std::move(engine));
  return garbage;
}

namespace {

/// In order: an engine goes after its sessions.
void destroy(std::vector<std::shared_ptr<void>>& garbage) {
  for (auto& object : garbage) object.reset();
}

void check(Napi::Env env, napi_status status) {
  if (status != napi_ok) throw Napi::Error::New(env);
}

}  // namespace

std::shared_ptr<EnvState> EnvState::create(Napi::Env env) {
  auto state = std::make_shared<EnvState>();
  state->env_ = env;
  const auto name = Napi::String::New(env, "cflow");
  check(env, napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, state.get(), on_wake,
                                             &state->wake_));
  check(env, napi_unref_threadsafe_function(env, state->wake_));
  // The environment owns the state; hooks run in reverse order, so this one before that of the wake function.
  env.SetInstanceData(new std::shared_ptr<EnvState>(state));
  check(env, napi_add_env_cleanup_hook(env, on_teardown, state.get()));
  return state;
}

EnvState& EnvState::of(Napi::Env env) { return **env.GetInstanceData<std::shared_ptr<EnvState>>(); }

void EnvState::add_engine(const std::shared_ptr<EngineCore>& core) {
  std::erase_if(engines_, [](const auto& weak) { return weak.expired(); });
  engines_.push_back(core);
}

PendingJob* EnvState::begin(std::unique_ptr<PendingJob> job) {
  PendingJob* key = job.get();
  if (jobs_.empty()) napi_ref_threadsafe_function(env_, wake_);
  jobs_.emplace(key, std::move(job));
  key->session->busy = true;
  const std::lock_guard lock(mutex_);
  running_++;
  return key;
}

void EnvState::finish(PendingJob* job) {
  const std::lock_guard lock(mutex_);
  finished_.push_back(job);
  napi_call_threadsafe_function(wake_, nullptr, napi_tsfn_nonblocking);
  if (--running_ == 0) idle_.notify_all();
}

void EnvState::on_wake(napi_env env, napi_value, void* context, void*) {
  if (env == nullptr) return;
  static_cast<EnvState*>(context)->settle_finished(Napi::Env(env));
}

void EnvState::settle_finished(Napi::Env env) {
  std::vector<PendingJob*> finished;
  {
    const std::lock_guard lock(mutex_);
    finished.swap(finished_);
  }
  const Napi::HandleScope scope(env);
  for (PendingJob* key : finished) {
    const auto node = jobs_.extract(key);
    if (node.empty()) continue;
    try {
      settle(env, *node.mapped());
    } catch (const Napi::Error&) {
      // The environment is ending: nobody waits for the promise.
    }
  }
  if (!finished.empty() && jobs_.empty()) napi_unref_threadsafe_function(env_, wake_);
}

void EnvState::settle(Napi::Env env, PendingJob& job) {
  SessionCore& session = *job.session;
  session.busy = false;
  if (session.session) {
    const auto bytes = static_cast<int64_t>(session.session->cache_bytes());
    Napi::MemoryManagement::AdjustExternalMemory(env, bytes - session.reported);
    session.reported = bytes;
  }
  if (job.error) return job.deferred.Reject(to_js_error(env, *job.error).Value());
  auto target = job.target.Value().As<Napi::Float32Array>();
  if (target.ElementLength() < session.logits.size()) {
    return job.deferred.Reject(to_js_error(env, "USAGE", "the array for the logits was detached meanwhile").Value());
  }
  std::memcpy(target.Data(), session.logits.data(), session.logits.size() * sizeof(float));
  job.deferred.Resolve(env.Undefined());
}

void EnvState::destroy_later(std::vector<std::shared_ptr<void>> garbage) {
  if (garbage.empty()) return;
  try {
    destroyers_.emplace_back([garbage]() mutable { destroy(garbage); });
    garbage.clear();
  } catch (const std::exception&) {
    // No thread or no memory for one: this one waits.
    destroy(garbage);
  }
}

/// Ends what runs, so that no thread touches this environment afterwards.
void EnvState::on_teardown(void* raw) {
  const auto state = static_cast<EnvState*>(raw)->shared_from_this();
  state->ending_ = true;
  for (const auto& weak : state->engines_) {
    if (const auto core = weak.lock()) {
      auto garbage = core->take();
      destroy(garbage);
    }
  }
  for (auto& thread : state->destroyers_) thread.join();
  state->destroyers_.clear();
  {
    std::unique_lock lock(state->mutex_);
    state->idle_.wait(lock, [&] { return state->running_ == 0; });
    state->finished_.clear();
  }
  state->jobs_.clear();
  napi_release_threadsafe_function(state->wake_, napi_tsfn_abort);
}

Napi::Promise DestroyWorker::start(Napi::Env env, std::vector<std::shared_ptr<void>> garbage) {
  auto* worker = new DestroyWorker(env, std::move(garbage));
  const auto promise = worker->deferred_.Promise();
  worker->Queue();
  return promise;
}

void DestroyWorker::Execute() { destroy(garbage_); }

void DestroyWorker::OnOK() {
  if (!EnvState::of(Env()).ending()) deferred_.Resolve(Env().Undefined());
}

Napi::Error to_js_error(Napi::Env env, const char* code, const std::string& problem, const std::string& remedy) {
  Napi::Error error = Napi::Error::New(env, problem);
  error.Set("code", Napi::String::New(env, code));
  if (!remedy.empty()) error.Set("remedy", Napi::String::New(env, remedy));
  return error;
}

Napi::Error to_js_error(Napi::Env env, const Error& error) {
  return to_js_error(env, error.code(), error.what(), error.remedy());
}

Error unexpected_error(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return Error("MEMORY", "memory could not be allocated", "close other programs, or use a smaller model or context");
  }
  return Error("INTERNAL", std::string("native code threw: ") + error.what());
}

}  // namespace cflow
