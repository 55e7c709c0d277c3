// Options and figures of reads, between JavaScript and io.h.
#pragma once

#include "../io/io.h"
#include "options.h"

namespace cflow {

/// { block, depth, backend, mode }, as IoChoice in addon.ts; the queue checks the alignment. @throws Error USAGE
inline IoOptions io_options(const Napi::Object& options) {
  IoOptions io;
  io.block = whole<uint32_t>(options, "block", 1, 1 << 30);
  io.depth = whole<unsigned>(options, "depth", 1, 256);
  io.backend = choice<IoBackend>(options, "backend", {"auto", "uring", "threads"});
  io.mode = choice<IoMode>(options, "mode", {"auto", "buffered"});
  return io;
}

/// How reads were made.
inline void set_way(Napi::Object& object, const IoStats& stats) {
  object.Set("direct", stats.direct);
  object.Set("uring", stats.uring);
  object.Set("reason", stats.reason);
}

}  // namespace cflow
