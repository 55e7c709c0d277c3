#include <cstring>

#include "handles.h"
#include "options.h"

namespace cflow {
namespace {

template <typename Array>
Array typed_array(const Napi::Value& value, napi_typedarray_type type, const char* problem) {
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != type) throw Error("INTERNAL", problem);
  return value.As<Array>();
}

std::vector<int32_t> read_ids(const Napi::Value& value, uint32_t vocab_size) {
  const auto array = typed_array<Napi::Int32Array>(value, napi_int32_array, "ids are no Int32Array");
  std::vector<int32_t> ids(array.Data(), array.Data() + array.ElementLength());
  if (ids.empty()) throw Error("USAGE", "no token ids");
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= vocab_size) {
      throw Error("USAGE", "token id " + std::to_string(id) + " is not from 0 to " + std::to_string(vocab_size - 1));
    }
  }
  return ids;
}

/// The session is free for the next call; V8 hears of its memory.
void set_free(Napi::Env env, SessionCore& core) {
  core.busy = false;
  if (!core.session) return;
  const auto bytes = static_cast<int64_t>(core.session->cache_bytes());
  Napi::MemoryManagement::AdjustExternalMemory(env, bytes - core.reported);
  core.reported = bytes;
}

/// A job under way. JavaScript references in it are touched on the JavaScript thread only.
class JobTask final : public Task {
 public:
  JobTask(Napi::Env env, std::shared_ptr<SessionCore> session, Napi::Float32Array target, Napi::Object handle)
      : Task(env),
        session_(std::move(session)),
        target_(Napi::Persistent(target.As<Napi::Object>())),
        handle_(Napi::Persistent(handle)) {}

 private:
  void ended(Napi::Env env) override { set_free(env, *session_); }

  Napi::Value result(Napi::Env env) override {
    auto target = target_.Value().As<Napi::Float32Array>();
    if (target.ElementLength() < session_->logits.size()) {
      throw Error("USAGE", "the array for the logits was detached meanwhile");
    }
    std::memcpy(target.Data(), session_->logits.data(), session_->logits.size() * sizeof(float));
    return env.Undefined();
  }

  const std::shared_ptr<SessionCore> session_;
  const Napi::ObjectReference target_;
  /// Keeps the session's JavaScript object, and so session and engine, alive.
  const Napi::ObjectReference handle_;
};

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
  void ended(Napi::Env env) override { set_free(env, *core_); }
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
    Job job;
    job.ids = read_ids(info[0], engine_->vocab_size);
    job.all_logits = info[2].ToBoolean();
    const auto target = typed_array<Napi::Float32Array>(info[1], napi_float32_array, "logits are no Float32Array");
    const size_t wanted = size_t{engine_->output_length} * (job.all_logits ? job.ids.size() : 1);
    if (target.ElementLength() < wanted) throw Error("INTERNAL", "the array for the logits is too short");
    core_->logits.resize(wanted);
    job.logits = core_->logits.data();

    Task* task = state_->begin(std::make_unique<JobTask>(env, core_, target, info.This().As<Napi::Object>()));
    const Napi::Promise promise = task->promise();
    core_->busy = true;
    job.done = [state = state_.get(), task](const Error* error) {
      if (error != nullptr) task->error = *error;
      state->finish(task);
    };
    // An abort that came after the end of the last job was none of this one's.
    core_->session->resume();
    try {
      engine_->engine->submit(core_->session, std::move(job));
    } catch (...) {
      task->error = current_error();
      state_->finish(task);
    }
    return promise;
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
    set_free(env, *core);
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
