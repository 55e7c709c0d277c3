// Regions of a file read in an order.
#pragma once

#include <napi.h>

namespace cflow {

/// Adds readRegions(fd, regions, options) to the exports: a promise of what src/native/addon.ts says.
void export_regions(Napi::Env env, Napi::Object exports);

}  // namespace cflow
