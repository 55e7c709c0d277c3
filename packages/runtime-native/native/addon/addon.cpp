// The addon: what src/native/addon.ts declares.
#include "../base/memory.h"
#include "bandwidth.h"
#include "disk.h"
#include "handles.h"
#include "quantize.h"
#include "sampling.h"
#include "sha256.h"

namespace cflow {
namespace {

/// isa(): the best instruction set, and all that this build has and this CPU can run.
Napi::Value isa(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  int count = 0;
  const Kernels* const* all = available_kernels(&count);
  auto available = Napi::Array::New(env, static_cast<size_t>(count));
  for (int i = 0; i < count; i++) available.Set(static_cast<uint32_t>(i), Napi::String::New(env, all[i]->isa));
  auto result = Napi::Object::New(env);
  result.Set("selected", Napi::String::New(env, find_kernels("")->isa));
  result.Set("available", available);
  return result;
}

/// constants(): the numbers of the tile, which packages/format states too.
Napi::Value constants(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  auto result = Napi::Object::New(env);
  result.Set("tileRows", kTileRows);
  result.Set("tileCols", kTileCols);
  result.Set("tileHeaderBytes", kTileHeaderBytes);
  auto dtypes = Napi::Object::New(env);
  for (int id = 0; id < kDtypeCount; id++) {
    const auto dtype = static_cast<Dtype>(id);
    auto entry = Napi::Object::New(env);
    entry.Set("rowBytes", static_cast<double>(row_bytes(dtype, kTileCols)));
    entry.Set("rowScales", row_scales(dtype, kTileCols));
    entry.Set("raggedStripeBytes", static_cast<double>(stripe_bytes(dtype, 77, 2 * kTileCols + 45)));
    dtypes.Set(static_cast<uint32_t>(id), entry);
  }
  result.Set("dtypes", dtypes);
  return result;
}

/// availableMemory(): bytes that can still be allocated, by the system and the cgroup limits.
Napi::Value available(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<double>(available_memory()));
}

Napi::Object init(Napi::Env env, Napi::Object exports) {
  EnvState::create(env);
  exports.Set("isa", Napi::Function::New(env, isa, "isa"));
  exports.Set("constants", Napi::Function::New(env, constants, "constants"));
  exports.Set("availableMemory", Napi::Function::New(env, available, "availableMemory"));
  exports.Set("openEngine", Napi::Function::New(env, open_engine, "openEngine"));
  export_bandwidth(env, exports);
  export_disk(env, exports);
  export_quantizer(env, exports);
  export_sampling(env, exports);
  export_sha256(env, exports);
  return exports;
}

}  // namespace
}  // namespace cflow

Napi::Object init_addon(Napi::Env env, Napi::Object exports) { return cflow::init(env, exports); }

NODE_API_MODULE(cflow, init_addon)
