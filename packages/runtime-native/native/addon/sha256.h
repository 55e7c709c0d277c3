// SHA-256 of two streams at a time: one chain of blocks leaves half of what the instructions for it could do.
#pragma once

#include <napi.h>

namespace cflow {

/// Adds sha256Blocks(states: Uint32Array(16), first: Uint8Array, second: Uint8Array) to `exports`, where the CPU has
/// instructions for SHA-256: the eight words of each stream, and its next bytes in whole blocks of 64.
void export_sha256(Napi::Env env, Napi::Object exports);

}  // namespace cflow
