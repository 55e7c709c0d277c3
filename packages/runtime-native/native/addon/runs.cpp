#include "runs.h"

#include <cstring>
#include <utility>

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

/// A job under way. JavaScript references in it are touched on the JavaScript thread only.
class RunTask final : public Task {
 public:
  /// One session of the job.
  struct Member {
    std::shared_ptr<SessionCore> core;
    Napi::ObjectReference handle;
    /// Empty where no logits are wanted.
    Napi::ObjectReference target;
    std::optional<Error> error;
  };

  RunTask(Napi::Env env, std::vector<Member> members, bool alone)
      : Task(env), members_(std::move(members)), alone_(alone) {}

  /// The engine's thread, once the job has ended.
  void note(const std::vector<Run>& runs) {
    for (size_t i = 0; i < runs.size(); i++) members_[i].error = runs[i].error;
    if (alone_) error = members_[0].error;
  }

 private:
  void ended(Napi::Env env) override {
    for (const Member& member : members_) member.core->set_free(env);
  }

  Napi::Value result(Napi::Env env) override {
    auto outcomes = Napi::Array::New(env, members_.size());
    for (uint32_t i = 0; i < members_.size(); i++) {
      const Member& member = members_[i];
      if (member.error) outcomes.Set(i, to_js_error(env, *member.error).Value());
      else if (!member.target.IsEmpty()) copy_logits(member);
    }
    return alone_ ? env.Undefined() : outcomes;
  }

  static void copy_logits(const Member& member) {
    auto target = member.target.Value().As<Napi::Float32Array>();
    const std::vector<float>& logits = member.core->logits;
    if (target.ElementLength() < logits.size()) throw Error("USAGE", "the array for the logits was detached meanwhile");
    std::memcpy(target.Data(), logits.data(), logits.size() * sizeof(float));
  }

  std::vector<Member> members_;
  const bool alone_;
};

}  // namespace

Napi::Value start_runs(Napi::Env env, EngineCore& engine, const std::vector<RunRequest>& requests, bool alone) {
  Job job;
  std::vector<RunTask::Member> members;
  for (const RunRequest& request : requests) {
    for (const RunTask::Member& member : members) {
      if (member.core == request.core) throw Error("USAGE", "a session is named twice");
    }
    Run& run = job.runs.emplace_back();
    run.session = request.core->session;
    run.ids = read_ids(request.ids, engine.vocab_size);
    run.logits = request.logits;
    RunTask::Member& member = members.emplace_back();
    member.core = request.core;
    member.handle = Napi::Persistent(request.handle);
    if (request.logits == Logits::none) continue;
    const auto target = typed_array<Napi::Float32Array>(request.target, napi_float32_array, "logits are no Float32Array");
    const size_t wanted = size_t{engine.output_length} * (request.logits == Logits::all ? run.ids.size() : 1);
    if (target.ElementLength() < wanted) throw Error("INTERNAL", "the array for the logits is too short");
    member.target = Napi::Persistent(request.target.As<Napi::Object>());
    member.core->logits.resize(wanted);
    run.output = member.core->logits.data();
  }

  const auto state = EnvState::of(env).shared();
  auto owned = std::make_unique<RunTask>(env, std::move(members), alone);
  RunTask* task = owned.get();
  state->begin(std::move(owned));
  const Napi::Promise promise = task->promise();
  for (const RunRequest& request : requests) {
    request.core->busy = true;
    // An abort that came after the end of the last job was none of this one's.
    request.core->session->resume();
  }
  job.done = [state = state.get(), task](const std::vector<Run>& runs) {
    task->note(runs);
    state->finish(task);
  };
  try {
    engine.engine->submit(std::move(job));
  } catch (...) {
    task->error = current_error();
    state->finish(task);
  }
  return promise;
}

}  // namespace cflow
