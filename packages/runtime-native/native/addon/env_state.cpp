#include "env_state.h"

#include "handles.h"

namespace cflow {

void SessionCore::set_free(Napi::Env env) {
  busy = false;
  if (!session) return;
  const auto bytes = static_cast<int64_t>(session->cache_bytes());
  Napi::MemoryManagement::AdjustExternalMemory(env, bytes - reported);
  reported = bytes;
}

std::shared_ptr<SessionCore> EngineCore::adopt(std::shared_ptr<Session> session) {
  auto core = std::make_shared<SessionCore>();
  core->session = std::move(session);
  std::erase_if(sessions, [](const auto& weak) { return weak.expired(); });
  sessions.push_back(core);
  return core;
}

std::vector<std::shared_ptr<void>> EngineCore::take() {
  std::vector<std::shared_ptr<void>> taken;
  taken.reserve(sessions.size() + 1);
  for (const auto& weak : sessions) {
    const auto core = weak.lock();
    if (!core || !core->session) continue;
    core->session->cancel();
    taken.push_back(std::move(core->session));
  }
  sessions.clear();
  if (engine) taken.push_back(std::move(engine));
  return taken;
}

void EnvState::create(Napi::Env env) {
  const auto state = std::make_shared<EnvState>();
  Tasks::create(env, state);
  state->engine_constructor = Napi::Persistent(EngineHandle::define(env));
  state->session_constructor = Napi::Persistent(SessionHandle::define(env));
  // Instance data outlive the environment's references; deleting them then would be too late.
  state->engine_constructor.SuppressDestruct();
  state->session_constructor.SuppressDestruct();
}

void EnvState::add_engine(const std::shared_ptr<EngineCore>& core) {
  std::erase_if(engines_, [](const auto& weak) { return weak.expired(); });
  engines_.push_back(core);
}

Napi::Promise EnvState::close(Napi::Env env, std::vector<std::shared_ptr<void>> objects) {
  auto task = std::make_unique<Task>(env);
  const Napi::Promise promise = task->promise();
  auto garbage = std::make_unique<Garbage>();
  garbage->objects = std::move(objects);
  garbage->closing = begin(std::move(task));
  destroy(std::move(garbage));
  return promise;
}

void EnvState::end() {
  for (const auto& weak : engines_) {
    const auto core = weak.lock();
    if (!core) continue;
    for (auto& object : core->take()) object.reset();
  }
  destroyer_.stop();
}

}  // namespace cflow
