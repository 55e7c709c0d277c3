#include "locality.h"

#include <bit>

#include "addon/options.h"
#include "addon/work.h"
#include "matvec_timing.h"

namespace cflow {
namespace {

constexpr int kMaxDimension = 1 << 20;

MatvecCase read_case(const Napi::Object& options) {
  return {static_cast<Dtype>(whole(options, "dtype", 0, kDtypeCount - 1)),
          options.Get("arithmetic").ToString().Utf8Value() == "q8" ? Arithmetic::q8 : Arithmetic::f32,
          whole(options, "rows", 1, kMaxDimension), whole(options, "cols", 1, kMaxDimension),
          whole(options, "stripeRows", 1, kTileRows)};
}

CacheGeometry read_shape(const Napi::Object& options, const char* field) {
  const auto shape = options.Get(field).As<Napi::Object>();
  const CacheGeometry cache{whole<uint64_t>(shape, "bytes", 64, 1 << 30),
                         whole<uint64_t>(shape, "ways", 1, 1 << 10)};
  if (cache.bytes % (cache.ways * kCacheLine) == 0 && std::has_single_bit(cache.sets())) return cache;
  throw Error("USAGE", std::string(field) + ": bytes / (ways * 64), the number of sets, is no power of two");
}

const TracedKernels& read_traced(const Napi::Object& options) {
  const int width = whole(options, "width", 0, 16);
  const TracedKernels* kernels = width == 0 ? traced_avx512_vnni() : traced_vectors(width);
  if (kernels != nullptr) return *kernels;
  throw Error("USAGE", width == 0 ? "this CPU or this build has no AVX-512 VNNI" : "width is none of 4, 8, 16");
}

Napi::Value counts_value(Napi::Env env, const SimulatedCounts& simulated) {
  auto result = Napi::Object::New(env);
  const auto set = [&](const char* region, const CacheCounts& counts) {
    auto value = Napi::Object::New(env);
    value.Set("reads", static_cast<double>(counts.reads));
    value.Set("misses", static_cast<double>(counts.misses));
    value.Set("missesBeyond", static_cast<double>(counts.misses_beyond));
    result.Set(region, value);
  };
  set("weights", simulated.weights);
  set("vectors", simulated.vectors);
  set("locals", simulated.locals);
  return result;
}

Napi::Value array_of(Napi::Env env, const std::vector<double>& numbers) {
  auto array = Napi::Array::New(env, numbers.size());
  for (size_t i = 0; i < numbers.size(); i++) array.Set(static_cast<uint32_t>(i), numbers[i]);
  return array;
}

Napi::Value timing_value(Napi::Env env, const MatvecTiming& timing) {
  auto result = Napi::Object::New(env);
  const auto set = [&](const char* name, const TimedArm& arm) {
    auto value = Napi::Object::New(env);
    value.Set("seconds", array_of(env, arm.seconds));
    value.Set("misses", array_of(env, arm.misses));
    result.Set(name, value);
  };
  set("tiled", timing.tiled);
  set("rowMajor", timing.row_major);
  result.Set("same", timing.same);
  result.Set("problem", timing.problem);
  return result;
}

Napi::Value simulate(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    const auto options = info[0].ToObject();
    const MatvecCase matvec = read_case(options);
    const TracedKernels& kernels = read_traced(options);
    const CacheModel model(read_shape(options, "first"), read_shape(options, "second"),
                           options.Get("prefetcher").ToBoolean());
    return Work<SimulatedCounts>::start(
        info.Env(), [matvec, &kernels, model] { return simulate_matvec(matvec, kernels, model); }, counts_value);
  });
}

Napi::Value time(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    const auto options = info[0].ToObject();
    const MatvecCase matvec = read_case(options);
    const int runs = whole(options, "runs", 1, 1000);
    const std::string isa = options.Get("isa").ToString();
    const Kernels* kernels = find_kernels(isa.c_str());
    if (kernels == nullptr) throw Error("USAGE", "instruction set \"" + isa + "\" is unknown, or this CPU lacks it");
    return Work<MatvecTiming>::start(
        info.Env(), [matvec, kernels, runs] { return time_matvec(matvec, *kernels, runs); }, timing_value);
  });
}

}  // namespace

void export_locality(Napi::Env env, Napi::Object exports) {
  exports.Set("simulateMatvec", Napi::Function::New(env, simulate, "simulateMatvec"));
  exports.Set("timeMatvec", Napi::Function::New(env, time, "timeMatvec"));
}

}  // namespace cflow
