// The JavaScript objects of an engine and its sessions (src/native/addon.ts declares their methods).
#pragma once

#include "env_state.h"

namespace cflow {

/// openEngine(fd, size, program, options): Promise<EngineHandle>
Napi::Value open_engine(const Napi::CallbackInfo& info);

class EngineHandle : public Napi::ObjectWrap<EngineHandle> {
 public:
  static Napi::Function define(Napi::Env env);
  static Napi::Object wrap(Napi::Env env, std::shared_ptr<EngineCore> core);
  explicit EngineHandle(const Napi::CallbackInfo& info);
  ~EngineHandle() override;

 private:
  /// @throws JavaScript Error USAGE after close
  EngineCore& open_core(Napi::Env env) const;
  Napi::Value create_session(const Napi::CallbackInfo& info);
  Napi::Value run_batch(const Napi::CallbackInfo& info);
  Napi::Value stats(const Napi::CallbackInfo& info);
  Napi::Value take_routings(const Napi::CallbackInfo& info);
  Napi::Value close(const Napi::CallbackInfo& info);

  std::shared_ptr<EnvState> state_;
  std::shared_ptr<EngineCore> core_;
  /// What the finalizer gives away.
  std::unique_ptr<Garbage> garbage_;
};

class SessionHandle : public Napi::ObjectWrap<SessionHandle> {
 public:
  static Napi::Function define(Napi::Env env);
  static Napi::Object wrap(Napi::Env env, std::shared_ptr<EngineCore> engine, std::shared_ptr<SessionCore> core);
  explicit SessionHandle(const Napi::CallbackInfo& info);
  ~SessionHandle() override;

  /// The core of a session of this engine. @throws Error USAGE if it is another's, after close, and while a call runs
  const std::shared_ptr<SessionCore>& idle_core(const EngineCore& engine) const;

 private:
  /// @throws Error USAGE after close, and while a call runs
  SessionCore& idle_core() const;
  Napi::Value run(const Napi::CallbackInfo& info);
  Napi::Value truncate(const Napi::CallbackInfo& info);
  Napi::Value fork(const Napi::CallbackInfo& info);
  Napi::Value cancel(const Napi::CallbackInfo& info);
  Napi::Value cache_bytes(const Napi::CallbackInfo& info);
  Napi::Value close(const Napi::CallbackInfo& info);

  std::shared_ptr<EnvState> state_;
  std::shared_ptr<EngineCore> engine_;
  std::shared_ptr<SessionCore> core_;
  std::unique_ptr<Garbage> garbage_;
};

}  // namespace cflow
