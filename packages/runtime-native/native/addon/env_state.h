// What the addon keeps for one JavaScript environment: nothing is global.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../engine/engine.h"
#include "destroyer.h"
#include "tasks.h"

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

  /// The session is free for the next call; V8 hears of its memory.
  void set_free(Napi::Env env);
};

/// A native engine and its sessions. Lives on the JavaScript thread, and as long as any object of it or of a session does.
struct EngineCore {
  std::shared_ptr<Engine> engine;
  std::vector<std::weak_ptr<SessionCore>> sessions;
  uint32_t vocab_size = 0;
  /// Elements that a token gives.
  uint32_t output_length = 0;
  /// JavaScript objects of the engine and its sessions.
  size_t handles = 0;
  /// Bytes reported to V8.
  int64_t reported = 0;

  /// The core of a session of this engine.
  std::shared_ptr<SessionCore> adopt(std::shared_ptr<Session> session);
  /// Cancels every job and gives up the engine: what must be destroyed, in order, which may block.
  /// @throws std::bad_alloc, and then nothing has changed
  std::vector<std::shared_ptr<void>> take();
};

/// V8 no longer counts the memory of a core.
template <typename Core>
void forget_memory(Napi::Env env, Core& core) {
  Napi::MemoryManagement::AdjustExternalMemory(env, -core.reported);
  core.reported = 0;
}

class EnvState final : public Tasks {
 public:
  static void create(Napi::Env env);
  static EnvState& of(Napi::Env env) { return static_cast<EnvState&>(Tasks::of(env)); }
  std::shared_ptr<EnvState> shared() { return std::static_pointer_cast<EnvState>(shared_from_this()); }

  Napi::FunctionReference engine_constructor;
  Napi::FunctionReference session_constructor;

  void add_engine(const std::shared_ptr<EngineCore>& core);

  /// Makes `destroy` possible. @throws std::system_error, std::bad_alloc
  void prepare_to_destroy() { destroyer_.start(); }
  /// For finalizers. JavaScript thread.
  void destroy(std::unique_ptr<Garbage> garbage) noexcept { destroyer_.destroy(std::move(garbage)); }
  /// The same, and a promise of its end.
  Napi::Promise close(Napi::Env env, std::vector<std::shared_ptr<void>> objects);

 private:
  void end() override;

  std::vector<std::weak_ptr<EngineCore>> engines_;
  Destroyer destroyer_{*this};
};

}  // namespace cflow
