// What a program must be before anything is made of it: relations between its parts that no step can check alone.
#pragma once

#include "engine.h"

namespace cflow {

/// Sizes that arithmetic on them cannot overflow, buffers that exist, token ids that the embedding has, and an output that
/// only the head touches: it has no room for the tokens before.
/// @throws Error INTERNAL
void check_program(const Program& program, const EngineOptions& options);

}  // namespace cflow
