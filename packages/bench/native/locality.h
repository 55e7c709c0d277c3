// Caches: what layouts of weights cost, simulated and measured.
#pragma once

#include <napi.h>

namespace cflow {

/// Adds simulateMatvec(options) and timeMatvec(options) to the exports: promises of what src/native/addon.ts says.
void export_locality(Napi::Env env, Napi::Object exports);

}  // namespace cflow
