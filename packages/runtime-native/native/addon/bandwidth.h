// Read bandwidth of main memory: what decoding is measured against.
#pragma once

#include <napi.h>

namespace cflow {

/// Adds readBandwidth(bytes, threads, runs) to the exports: a promise of GB/s (10^9 bytes) of each run.
/// @throws USAGE for counts that are none; the promise rejects with MEMORY or LIMIT_EXCEEDED if memory or threads are refused.
void export_bandwidth(Napi::Env env, Napi::Object exports);

}  // namespace cflow
