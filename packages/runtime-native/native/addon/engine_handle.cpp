#include <algorithm>
#include <utility>

#include "handles.h"
#include "io_values.h"
#include "program_reader.h"

namespace cflow {
namespace {

std::string isa_list() {
  int count = 0;
  const Kernels* const* all = available_kernels(&count);
  std::string names;
  for (int i = 0; i < count; i++) names += (i ? ", " : "") + std::string(all[i]->isa);
  return names;
}

const Kernels* kernels_named(const std::string& isa) {
  const Kernels* kernels = find_kernels(isa.c_str());
  if (kernels == nullptr) {
    throw Error("USAGE", "instruction set \"" + isa + "\" is unknown, or this CPU lacks it",
                "available: " + isa_list());
  }
  return kernels;
}

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxBatch = 1u << 16;
constexpr unsigned kMaxSlots = 1u << 30;
/// What a JavaScript number counts exactly.
constexpr int64_t kMaxBytes = 9007199254740991;

DirectOptions read_direct(const Napi::Object& options) {
  DirectOptions direct;
  direct.io = io_options(options);
  direct.expert_slots = whole<unsigned>(options, "expertSlots", 0, kMaxSlots);
  direct.stream_slots = whole<unsigned>(options, "streamSlots", 0, kMaxSlots);
  direct.half_life = options.Get("halfLife").ToNumber().DoubleValue();
  direct.read_ahead = options.Get("readAhead").ToBoolean();
  return direct;
}

SpillOptions read_spill(const Napi::Object& options, const IoOptions& io) {
  return {whole<uint64_t>(options, "cacheMemory", 1, kMaxBytes), options.Get("directory").ToString(), io};
}

EngineOptions read_options(const Napi::Object& options) {
  EngineOptions result;
  result.weights = choice<WeightMode>(options, "weights", {"mapped", "resident", "direct"});
  result.arithmetic = choice<Arithmetic>(options, "arithmetic", {"f32", "q8"});
  result.cache = choice<CacheType>(options, "cache", {"f32", "f16"});
  result.threads = whole<unsigned>(options, "threads", 1, kMaxThreads);
  result.max_batch = whole<unsigned>(options, "maxBatch", 1, kMaxBatch);
  result.kernels = kernels_named(options.Get("isa").ToString());
  result.profile = options.Get("profile").ToBoolean();
  result.record_routings = options.Get("recordRoutings").ToBoolean();
  if (result.weights == WeightMode::direct) result.direct = read_direct(options.Get("direct").ToObject());
  const Napi::Value spill = options.Get("spill");
  if (spill.IsObject()) result.spill = read_spill(spill.As<Napi::Object>(), result.direct.io);
  return result;
}

/// Opens off the JavaScript thread: resident weights take as long as reading them.
class OpenWorker : public Napi::AsyncWorker {
 public:
  OpenWorker(Napi::Env env, int fd, uint64_t size, Program program, EngineOptions options)
      : Napi::AsyncWorker(env),
        deferred_(Napi::Promise::Deferred::New(env)),
        fd_(fd),
        size_(size),
        program_(std::move(program)),
        options_(options),
        core_(std::make_shared<EngineCore>()) {}

  Napi::Promise promise() const { return deferred_.Promise(); }

  void Execute() override {
    try {
      core_->vocab_size = program_.vocab_size;
      core_->output_length = program_.buffers[program_.output];
      core_->engine = Engine::open(fd_, size_, std::move(program_), options_);
    } catch (const Error& error) {
      error_ = std::make_unique<Error>(error);
    } catch (const std::exception& error) {
      error_ = std::make_unique<Error>(unexpected_error(error));
    }
  }

  void OnOK() override {
    EnvState& state = EnvState::of(Env());
    if (state.ending()) return;
    if (error_) return deferred_.Reject(to_js_error(Env(), *error_).Value());
    const EngineStats stats = core_->engine->stats();
    const uint64_t slots = stats.tiers.experts.slot_bytes + stats.tiers.stream_bytes;
    const uint64_t bytes = stats.scratch_bytes + stats.resident_bytes + slots;
    core_->reported = static_cast<int64_t>(bytes);
    Napi::MemoryManagement::AdjustExternalMemory(Env(), core_->reported);
    state.add_engine(core_);
    deferred_.Resolve(EngineHandle::wrap(Env(), core_));
  }

 private:
  Napi::Promise::Deferred deferred_;
  int fd_;
  uint64_t size_;
  Program program_;
  EngineOptions options_;
  std::shared_ptr<EngineCore> core_;
  std::unique_ptr<Error> error_;
};

Napi::Object profile_entry(Napi::Env env, const ProfileEntry& entry) {
  auto object = Napi::Object::New(env);
  object.Set("name", entry.name);
  object.Set("calls", static_cast<double>(entry.calls));
  object.Set("seconds", entry.seconds);
  object.Set("bytes", static_cast<double>(entry.bytes));
  return object;
}

Napi::Object numbers(Napi::Env env, std::initializer_list<std::pair<const char*, double>> entries) {
  auto object = Napi::Object::New(env);
  for (const auto& [name, value] : entries) object.Set(name, value);
  return object;
}

Napi::Object tier_stats(Napi::Env env, const TierStats& tiers) {
  const auto n = [](auto value) { return static_cast<double>(value); };
  const auto& [experts, stream_bytes, stall_seconds, io, spill] = tiers;
  Napi::Object object = numbers(env, {{"slots", n(experts.slots)},
                                      {"slotBytes", n(experts.slot_bytes)},
                                      {"streamBytes", n(stream_bytes)},
                                      {"hits", n(experts.hits)},
                                      {"predicted", n(experts.predicted)},
                                      {"misses", n(experts.misses)},
                                      {"ahead", n(experts.ahead)},
                                      {"stallSeconds", stall_seconds},
                                      {"bytesRead", n(io.bytes_read)},
                                      {"blocks", n(io.blocks)},
                                      {"busySeconds", io.busy_seconds},
                                      {"cacheWritten", n(spill.bytes_written)},
                                      {"cacheRead", n(spill.bytes_read)},
                                      {"cacheStallSeconds", spill.stall_seconds},
                                      {"cacheBusySeconds", spill.busy_seconds}});
  set_way(object, io);
  object.Set("cacheReason", spill.reason);
  return object;
}

Napi::Object routing_object(Napi::Env env, const Routing& routing) {
  Napi::Object object = numbers(env, {{"bank", static_cast<double>(routing.bank)},
                                      {"position", static_cast<double>(routing.position)},
                                      {"topK", static_cast<double>(routing.top_k)}});
  auto experts = Napi::Uint16Array::New(env, routing.experts.size());
  std::copy(routing.experts.begin(), routing.experts.end(), experts.Data());
  object.Set("experts", experts);
  return object;
}

}  // namespace

Napi::Value open_engine(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    const int fd = info[0].ToNumber().Int32Value();
    const auto size = static_cast<uint64_t>(info[1].ToNumber().DoubleValue());
    const EngineOptions options = read_options(info[3].ToObject());
    auto* worker = new OpenWorker(env, fd, size, read_program(info[2].ToObject()), options);
    const Napi::Promise promise = worker->promise();
    worker->Queue();
    return promise;
  });
}

Napi::Function EngineHandle::define(Napi::Env env) {
  return DefineClass(env, "EngineHandle",
                     {InstanceMethod<&EngineHandle::create_session>("createSession"),
                      InstanceMethod<&EngineHandle::stats>("stats"),
                      InstanceMethod<&EngineHandle::take_routings>("takeRoutings"),
                      InstanceMethod<&EngineHandle::close>("close")});
}

Napi::Object EngineHandle::wrap(Napi::Env env, std::shared_ptr<EngineCore> core) {
  const auto object = EnvState::of(env).engine_constructor.New({});
  Unwrap(object)->core_ = std::move(core);
  return object;
}

EngineHandle::EngineHandle(const Napi::CallbackInfo& info)
    : Napi::ObjectWrap<EngineHandle>(info), state_(EnvState::of(info.Env()).shared_from_this()) {}

EngineHandle::~EngineHandle() {
  if (!core_ || state_->ending()) return;
  forget_memory(Env());
  state_->destroy_later(core_->take());
}

EngineCore& EngineHandle::open_core(Napi::Env env) const {
  if (!core_ || !core_->engine) throw to_js_error(env, "USAGE", "the engine is closed");
  return *core_;
}

Napi::Value EngineHandle::create_session(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    EngineCore& core = open_core(env);
    auto session = std::make_shared<SessionCore>();
    session->session = core.engine->create_session();
    std::erase_if(core.sessions, [](const auto& weak) { return weak.expired(); });
    core.sessions.push_back(session);
    return SessionHandle::wrap(env, core_, session);
  });
}

Napi::Value EngineHandle::stats(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    const EngineStats stats = open_core(env).engine->stats();
    auto object = Napi::Object::New(env);
    object.Set("weightBytes", static_cast<double>(stats.weight_bytes));
    object.Set("scratchBytes", static_cast<double>(stats.scratch_bytes));
    object.Set("barriersPerToken", static_cast<double>(stats.barriers_per_token));
    object.Set("bytesRead", static_cast<double>(stats.bytes_read));
    auto profile = Napi::Array::New(env, stats.profile.size());
    for (uint32_t i = 0; i < stats.profile.size(); i++) profile.Set(i, profile_entry(env, stats.profile[i]));
    object.Set("profile", profile);
    object.Set("tiers", tier_stats(env, stats.tiers));
    return object;
  });
}

Napi::Value EngineHandle::take_routings(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    const auto routings = open_core(env).engine->take_routings();
    auto list = Napi::Array::New(env, routings.size());
    for (uint32_t i = 0; i < routings.size(); i++) list.Set(i, routing_object(env, routings[i]));
    return list;
  });
}

Napi::Value EngineHandle::close(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    std::vector<std::shared_ptr<void>> garbage;
    if (core_) {
      forget_memory(env);
      garbage = core_->take();
    }
    return DestroyWorker::start(env, std::move(garbage));
  });
}

void EngineHandle::forget_memory(Napi::Env env) {
  Napi::MemoryManagement::AdjustExternalMemory(env, -core_->reported);
  core_->reported = 0;
}

}  // namespace cflow
