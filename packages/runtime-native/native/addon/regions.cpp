#include "regions.h"

#include "io_values.h"
#include "region_reader.h"
#include "work.h"

namespace cflow {
namespace {

/// Pairs of offset and length.
std::vector<FetchRegion> regions_of(const Napi::Value& value) {
  const auto pairs = value.As<Napi::Float64Array>();
  std::vector<FetchRegion> regions;
  for (size_t i = 0; i + 1 < pairs.ElementLength(); i += 2) {
    regions.push_back({static_cast<uint64_t>(pairs[i]), static_cast<uint64_t>(pairs[i + 1])});
  }
  return regions;
}

Napi::Value region_value(Napi::Env env, const RegionRead& read) {
  auto result = Napi::Object::New(env);
  result.Set("bytes", static_cast<double>(read.bytes));
  result.Set("seconds", read.seconds);
  set_way(result, read.stats);
  result.Set("folded", Napi::BigInt::New(env, read.folded));
  return result;
}

Napi::Value read(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    const int fd = info[0].ToNumber();
    const auto given = info[2].ToObject();
    const IoOptions options = io_options(given);
    const bool prefetch = given.Get("prefetch").ToBoolean();
    auto regions = regions_of(info[1]);
    return Work<RegionRead>::start(
        info.Env(), [=, regions = std::move(regions)] { return read_regions(fd, regions, options, prefetch); },
        region_value);
  });
}

}  // namespace

void export_regions(Napi::Env env, Napi::Object exports) {
  exports.Set("readRegions", Napi::Function::New(env, read, "readRegions"));
}

}  // namespace cflow
