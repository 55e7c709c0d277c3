// The addon's quantizer: stripes of a checkpoint to stripes of a file. Used by the threads of the converter.
#pragma once

#include <napi.h>

namespace cflow {

/// Adds quantizeStripe (see quantize.cpp and src/native/quantize.ts) to the exports.
void export_quantizer(Napi::Env env, Napi::Object exports);

}  // namespace cflow
