#include "regions.h"

#include <cmath>

#include "addon/io_values.h"
#include "region_reader.h"
#include "addon/work.h"

namespace cflow {
namespace {

/// What a JavaScript number counts exactly.
constexpr double kMaxBytes = 9007199254740991;

/// Pairs of offset and length. @throws Error USAGE
std::vector<FetchRegion> regions_of(const Napi::Value& value) {
  const bool typed = value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == napi_float64_array;
  if (!typed) throw Error("USAGE", "regions is not a Float64Array");
  const auto pairs = value.As<Napi::Float64Array>();
  if (pairs.ElementLength() % 2) throw Error("USAGE", "regions is not made of pairs of offset and length");
  const auto bytes = [](double x) {
    if (x >= 0 && x <= kMaxBytes && x == std::floor(x)) return static_cast<uint64_t>(x);
    throw Error("USAGE", "regions holds " + std::to_string(x) + ", which is no number of bytes");
  };
  std::vector<FetchRegion> regions;
  for (size_t i = 0; i < pairs.ElementLength(); i += 2) regions.push_back({bytes(pairs[i]), bytes(pairs[i + 1])});
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
    const int fd = whole(info[0], "fd", 0, INT32_MAX);
    const Napi::Object given = object(info[2], "options");
    const IoOptions options = io_options(given);
    const bool prefetch = flag(given, "prefetch");
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
