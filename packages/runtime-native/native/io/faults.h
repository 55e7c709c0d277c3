// Faults for tests, between a queue and what carries its blocks out.
#pragma once

#include <cstdint>

#include "file.h"

namespace cflow {

/// The answer to an attempt, bytes or -errno, made worse as `faults` say; the first of a block only, by its number.
/// Sleeps for a delay. What a read is made to have missed is overwritten, so that nobody finds it there by luck.
int64_t inject(const IoFaults& faults, const IoBlock& block, int64_t answer);

}  // namespace cflow
