// From the NativeProgram of src/native/program.ts to the Program of the engine.
#pragma once

#include "../engine/program.h"
#include "env_state.h"

namespace cflow {

/// @throws Error INTERNAL naming the field, if a value is missing, out of range, or an index points nowhere
Program read_program(Napi::Object object);

}  // namespace cflow
