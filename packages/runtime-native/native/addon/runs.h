// Jobs that JavaScript starts: tokens of one session or of several.
#pragma once

#include <memory>
#include <vector>

#include "env_state.h"

namespace cflow {

/// What one session is to pass, as JavaScript gives it.
struct RunRequest {
  /// Keeps the session, and so the engine, alive.
  Napi::Object handle;
  std::shared_ptr<SessionCore> core;
  /// Int32Array
  Napi::Value ids;
  /// Float32Array that the logits are copied to; undefined where none are wanted.
  Napi::Value target;
  Logits logits;
};

/// A promise of one job for all of them: with `alone`, of nothing, or it rejects with the error of the only one; else of
/// an array with undefined or an error for each.
/// @throws Error USAGE for bad ids or arrays and for a session that is named twice, INTERNAL, MEMORY
Napi::Value start_runs(Napi::Env env, EngineCore& engine, const std::vector<RunRequest>& requests, bool alone);

}  // namespace cflow
