// The choice of a token from a row of logits.
#pragma once

#include <napi.h>

namespace cflow {

void export_sampling(Napi::Env env, Napi::Object exports);

}  // namespace cflow
