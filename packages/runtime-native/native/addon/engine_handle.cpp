#include <algorithm>
#include <utility>

#include "handles.h"
#include "io_values.h"
#include "program_reader.h"
#include "runs.h"

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
  const Napi::Value half_life = options.Get("halfLife");
  direct.half_life = half_life.IsNumber() ? half_life.As<Napi::Number>().DoubleValue() : -1;
  if (!(direct.half_life >= 0)) throw Error("USAGE", "halfLife is not a number of tokens");
  direct.read_ahead = flag(options, "readAhead");
  return direct;
}

SpillOptions read_spill(const Napi::Object& options, const IoOptions& io) {
  return {whole<uint64_t>(options, "cacheMemory", 1, kMaxBytes), text(options, "directory"), io};
}

EngineOptions read_options(const Napi::Object& options) {
  EngineOptions result;
  result.weights = choice<WeightMode>(options, "weights", {"mapped", "resident", "direct"});
  result.arithmetic = choice<Arithmetic>(options, "arithmetic", {"f32", "q8"});
  result.cache = choice<CacheType>(options, "cache", {"f32", "f16"});
  result.threads = whole<unsigned>(options, "threads", 1, kMaxThreads);
  result.share_short = flag(options, "shareShort");
  result.max_batch = whole<unsigned>(options, "maxBatch", 1, kMaxBatch);
  result.kernels = kernels_named(text(options, "isa"));
  result.profile = flag(options, "profile");
  result.record_routings = flag(options, "recordRoutings");
  if (result.weights == WeightMode::direct) result.direct = read_direct(object(options.Get("direct"), "direct"));
  const Napi::Value spill = options.Get("spill");
  if (spill.IsObject()) result.spill = read_spill(spill.As<Napi::Object>(), result.direct.io);
  return result;
}

/// Resident weights take as long as reading them.
class OpenTask final : public Task {
 public:
  OpenTask(Napi::Env env, int fd, uint64_t size, Program program, EngineOptions options)
      : Task(env),
        fd_(fd),
        size_(size),
        program_(std::move(program)),
        options_(std::move(options)),
        core_(std::make_shared<EngineCore>()) {}

 private:
  void execute() override {
    core_->vocab_size = program_.vocab_size;
    core_->output_length = program_.buffers[program_.output];
    core_->engine = Engine::open(fd_, size_, std::move(program_), options_);
  }

  Napi::Value result(Napi::Env env) override {
    EnvState& state = EnvState::of(env);
    const EngineStats stats = core_->engine->stats();
    const uint64_t slots = stats.tiers.experts.slot_bytes + stats.tiers.stream_bytes;
    const uint64_t bytes = stats.scratch_bytes + stats.resident_bytes + slots;
    state.add_engine(core_);
    const Napi::Object handle = EngineHandle::wrap(env, core_);
    core_->reported = static_cast<int64_t>(bytes);
    Napi::MemoryManagement::AdjustExternalMemory(env, core_->reported);
    return handle;
  }

  const int fd_;
  const uint64_t size_;
  Program program_;
  const EngineOptions options_;
  const std::shared_ptr<EngineCore> core_;
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
    const int fd = whole(info[0], "fd", 0, INT32_MAX);
    const auto size = whole<uint64_t>(info[1], "size", 0, kMaxBytes);
    const EngineOptions options = read_options(object(info[3], "options"));
    Program program = read_program(object(info[2], "program"));
    EnvState::of(env).prepare_to_destroy();
    return Tasks::start(env, std::make_unique<OpenTask>(env, fd, size, std::move(program), options));
  });
}

Napi::Function EngineHandle::define(Napi::Env env) {
  return DefineClass(env, "EngineHandle",
                     {InstanceMethod<&EngineHandle::create_session>("createSession"),
                      InstanceMethod<&EngineHandle::run_batch>("runBatch"),
                      InstanceMethod<&EngineHandle::stats>("stats"),
                      InstanceMethod<&EngineHandle::take_routings>("takeRoutings"),
                      InstanceMethod<&EngineHandle::close>("close")});
}

Napi::Object EngineHandle::wrap(Napi::Env env, std::shared_ptr<EngineCore> core) {
  auto garbage = std::make_unique<Garbage>();
  const auto object = EnvState::of(env).engine_constructor.New({});
  EngineHandle* handle = Unwrap(object);
  handle->garbage_ = std::move(garbage);
  handle->core_ = std::move(core);
  handle->core_->handles++;
  return object;
}

EngineHandle::EngineHandle(const Napi::CallbackInfo& info)
    : Napi::ObjectWrap<EngineHandle>(info), state_(EnvState::of(info.Env()).shared()) {}

/// Collected: sessions that are still in use, and their jobs, keep the engine.
EngineHandle::~EngineHandle() {
  if (!core_ || state_->ending()) return;
  if (--core_->handles == 0) forget_memory(Env(), *core_);
  garbage_->engine = std::move(core_);
  state_->destroy(std::move(garbage_));
}

EngineCore& EngineHandle::open_core(Napi::Env env) const {
  if (!core_ || !core_->engine) throw to_js_error(env, "USAGE", "the engine is closed");
  return *core_;
}

Napi::Value EngineHandle::create_session(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    EngineCore& core = open_core(env);
    return SessionHandle::wrap(env, core_, core.adopt(core.engine->create_session()));
  });
}

/// runBatch(runs: { session, ids, logits?, all }[]): Promise<(undefined | Error)[]>
Napi::Value EngineHandle::run_batch(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    EngineCore& core = open_core(env);
    if (!info[0].IsArray()) throw Error("USAGE", "runs are no array");
    const auto array = info[0].As<Napi::Array>();
    std::vector<RunRequest> requests;
    for (uint32_t i = 0; i < array.Length(); i++) {
      const Napi::Object run = object(array.Get(i), "a run");
      const Napi::Object session = object(run.Get("session"), "session");
      if (!session.InstanceOf(EnvState::of(env).session_constructor.Value())) throw Error("USAGE", "session is none");
      const SessionHandle* handle = SessionHandle::Unwrap(session);
      const Napi::Value target = run.Get("logits");
      const Logits logits = target.IsUndefined() ? Logits::none : flag(run, "all") ? Logits::all : Logits::last;
      requests.push_back({session, handle->idle_core(core), run.Get("ids"), target, logits});
    }
    return start_runs(env, core, requests, false);
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
    object.Set("sharedPhases", static_cast<double>(stats.shared_phases));
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
    std::vector<std::shared_ptr<void>> objects;
    if (core_) {
      objects = core_->take();
      forget_memory(env, *core_);
    }
    return state_->close(env, std::move(objects));
  });
}

}  // namespace cflow
