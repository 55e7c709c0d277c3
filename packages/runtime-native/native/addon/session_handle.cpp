#include "handles.h"

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

}  // namespace

Napi::Function SessionHandle::define(Napi::Env env) {
  return DefineClass(
      env, "SessionHandle",
      {InstanceMethod<&SessionHandle::run>("run"), InstanceMethod<&SessionHandle::cancel>("cancel"),
       InstanceMethod<&SessionHandle::cache_bytes>("cacheBytes"), InstanceMethod<&SessionHandle::close>("close")});
}

Napi::Object SessionHandle::wrap(Napi::Env env, std::shared_ptr<EngineCore> engine,
                                 std::shared_ptr<SessionCore> core) {
  const auto object = EnvState::of(env).session_constructor.New({});
  SessionHandle* handle = Unwrap(object);
  handle->engine_ = std::move(engine);
  handle->core_ = std::move(core);
  return object;
}

SessionHandle::SessionHandle(const Napi::CallbackInfo& info)
    : Napi::ObjectWrap<SessionHandle>(info), state_(EnvState::of(info.Env()).shared_from_this()) {}

SessionHandle::~SessionHandle() {
  if (core_ && !state_->ending()) state_->destroy_later(take(Env()));
}

/// run(ids: Int32Array, logits: Float32Array, all: boolean): Promise<void>
Napi::Value SessionHandle::run(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    if (!core_ || !core_->session) throw Error("USAGE", "the session is closed");
    if (!engine_->engine) throw Error("USAGE", "the engine is closed");
    if (core_->busy) throw Error("USAGE", "the session is busy");
    Job job;
    job.ids = read_ids(info[0], engine_->vocab_size);
    job.all_logits = info[2].ToBoolean();
    const auto target = typed_array<Napi::Float32Array>(info[1], napi_float32_array, "logits are no Float32Array");
    const size_t wanted = size_t{engine_->output_length} * (job.all_logits ? job.ids.size() : 1);
    if (target.ElementLength() < wanted) throw Error("INTERNAL", "the array for the logits is too short");
    core_->logits.resize(wanted);
    job.logits = core_->logits.data();

    PendingJob* pending =
        state_->begin(std::make_unique<PendingJob>(env, core_, target, info.This().As<Napi::Object>()));
    const Napi::Promise promise = pending->deferred.Promise();
    job.done = [state = state_, pending](const Error* error) {
      if (error != nullptr) pending->error = std::make_unique<Error>(*error);
      state->finish(pending);
    };
    // An abort that came after the end of the last job was none of this one's.
    core_->session->resume();
    try {
      engine_->engine->submit(core_->session, std::move(job));
    } catch (const Error& error) {
      pending->error = std::make_unique<Error>(error);
      state_->finish(pending);
    } catch (const std::exception& error) {
      pending->error = std::make_unique<Error>(unexpected_error(error));
      state_->finish(pending);
    }
    return promise;
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

Napi::Value SessionHandle::close(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value { return DestroyWorker::start(env, take(env)); });
}

/// Cancels what runs and gives up the session; a running job keeps it alive until it ends.
std::vector<std::shared_ptr<void>> SessionHandle::take(Napi::Env env) {
  std::vector<std::shared_ptr<void>> garbage;
  if (!core_) return garbage;
  Napi::MemoryManagement::AdjustExternalMemory(env, -core_->reported);
  core_->reported = 0;
  if (core_->session) {
    if (core_->busy) core_->session->cancel();
    garbage.push_back(std::move(core_->session));
  }
  return garbage;
}

}  // namespace cflow
