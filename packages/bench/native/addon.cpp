// The addon of the experiments: what src/runner/addon.ts declares.
#include "addon/tasks.h"
#include "locality.h"
#include "regions.h"
#include "simulate_cache.h"

namespace cflow {
namespace {

Napi::Object init(Napi::Env env, Napi::Object exports) {
  Tasks::create(env, std::make_shared<Tasks>());
  export_cache_simulator(env, exports);
  export_locality(env, exports);
  export_regions(env, exports);
  return exports;
}

}  // namespace
}  // namespace cflow

Napi::Object init_addon(Napi::Env env, Napi::Object exports) { return cflow::init(env, exports); }

NODE_API_MODULE(cflow_bench, init_addon)
