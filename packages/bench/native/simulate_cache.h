// Recorded routings against the engine's own cache of experts.
#pragma once

#include <napi.h>

namespace cflow {

/// Adds simulateCache to the addon.
void export_cache_simulator(Napi::Env env, Napi::Object exports);

}  // namespace cflow
