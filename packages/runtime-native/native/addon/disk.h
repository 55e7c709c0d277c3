// Read bandwidth of the disk behind a file: what tiers are chosen by.
#pragma once

#include <napi.h>

namespace cflow {

/// Adds diskBandwidth(fd, size, { block, depth, milliseconds, backend, mode }) to the exports: a promise of
/// { bytes, seconds, direct, uring, reason }.
/// @throws USAGE for wrong options; the promise rejects with what measure_disk throws.
void export_disk(Napi::Env env, Napi::Object exports);

}  // namespace cflow
