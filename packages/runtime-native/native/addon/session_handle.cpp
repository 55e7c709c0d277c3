#include "handles.h"
#include "options.h"
#include "runs.h"

namespace cflow {
namespace {

/// Off the event loop: it may wait for the disk.
class TruncateTask final : public Task {
 public:
  TruncateTask(Napi::Env env, std::shared_ptr<SessionCore> core, uint64_t position, Napi::Object handle)
      : Task(env),
        core_(std::move(core)),
        session_(core_->session),
        position_(position),
        handle_(Napi::Persistent(handle)) {}

 private:
  void execute() override { position_ = session_->truncate(position_); }
  void ended(Napi::Env env) override { core_->set_free(env); }
  Napi::Value result(Napi::Env env) override { return Napi::Number::New(env, static_cast<double>(position_)); }

  const std::shared_ptr<SessionCore> core_;
  const std::shared_ptr<Session> session_;
  uint64_t position_;
  const Napi::ObjectReference handle_;
};

}  // namespace

Napi::Function SessionHandle::define(Napi::Env env) {
  return DefineClass(
      env, "SessionHandle",
      {InstanceMethod<&SessionHandle::run>("run"), InstanceMethod<&SessionHandle::truncate>("truncate"),
       InstanceMethod<&SessionHandle::fork>("fork"), InstanceMethod<&SessionHandle::cancel>("cancel"),
       InstanceMethod<&SessionHandle::cache_bytes>("cacheBytes"), InstanceMethod<&SessionHandle::close>("close")});
}

Napi::Object SessionHandle::wrap(Napi::Env env, std::shared_ptr<EngineCore> engine,
                                 std::shared_ptr<SessionCore> core) {
  auto garbage = std::make_unique<Garbage>();
  const auto object = EnvState::of(env).session_constructor.New({});
  SessionHandle* handle = Unwrap(object);
  handle->garbage_ = std::move(garbage);
  handle->engine_ = std::move(engine);
  handle->engine_->handles++;
  handle->core_ = std::move(core);
  return object;
}

SessionHandle::SessionHandle(const Napi::CallbackInfo& info)
    : Napi::ObjectWrap<SessionHandle>(info), state_(EnvState::of(info.Env()).shared()) {}

/// Collected; never while a job runs, which keeps this object.
SessionHandle::~SessionHandle() {
  if (!core_ || state_->ending()) return;
  forget_memory(Env(), *core_);
  if (--engine_->handles == 0) forget_memory(Env(), *engine_);
  garbage_->session = std::move(core_);
  garbage_->engine = std::move(engine_);
  state_->destroy(std::move(garbage_));
}

const std::shared_ptr<SessionCore>& SessionHandle::idle_core(const EngineCore& engine) const {
  if (engine_.get() != &engine) throw Error("USAGE", "the session belongs to another engine");
  idle_core();
  return core_;
}

SessionCore& SessionHandle::idle_core() const {
  if (!core_ || !core_->session) throw Error("USAGE", "the session is closed");
  if (!engine_->engine) throw Error("USAGE", "the engine is closed");
  if (core_->busy) throw Error("USAGE", "the session is busy");
  return *core_;
}

/// run(ids: Int32Array, logits: Float32Array, all: boolean): Promise<void>
Napi::Value SessionHandle::run(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    idle_core();
    const Logits logits = info[2].ToBoolean() ? Logits::all : Logits::last;
    std::vector<RunRequest> requests;
    requests.push_back({info.This().As<Napi::Object>(), core_, info[0], info[1], logits});
    return start_runs(env, *engine_, requests, true);
  });
}

/// truncate(position: number): Promise<number>
Napi::Value SessionHandle::truncate(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    SessionCore& core = idle_core();
    const auto position = whole<uint64_t>(info[0], "position", 0, UINT32_MAX);
    auto task = std::make_unique<TruncateTask>(env, core_, position, info.This().As<Napi::Object>());
    core.busy = true;
    try {
      return Tasks::start(env, std::move(task));
    } catch (...) {
      core.busy = false;
      throw;
    }
  });
}

/// fork(): SessionHandle
Napi::Value SessionHandle::fork(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    const auto core = engine_->adopt(engine_->engine->fork(*idle_core().session));
    core->set_free(env);
    return wrap(env, engine_, core);
  });
}

Napi::Value SessionHandle::cancel(const Napi::CallbackInfo& info) {
  if (core_ && core_->session && core_->busy) core_->session->cancel();
  return info.Env().Undefined();
}

Napi::Value SessionHandle::cache_bytes(const Napi::CallbackInfo& info) {
  const bool open = core_ && core_->session;
  return Napi::Number::New(info.Env(), open ? static_cast<double>(core_->session->cache_bytes()) : 0);
}

/// Cancels what runs and gives up the session; a running job keeps it alive until it ends.
Napi::Value SessionHandle::close(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    std::vector<std::shared_ptr<void>> objects;
    if (core_ && core_->session) {
      objects.reserve(1);
      forget_memory(env, *core_);
      if (core_->busy) core_->session->cancel();
      objects.push_back(std::move(core_->session));
    }
    return state_->close(env, std::move(objects));
  });
}

}  // namespace cflow
