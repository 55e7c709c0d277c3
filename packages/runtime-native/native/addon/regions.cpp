#include "regions.h"

#include "options.h"
#include "region_reader.h"
#include "work.h"

namespace cflow {
namespace {

constexpr int kMaxBlock = 1 << 30;
constexpr int kMaxDepth = 256;

/// Pairs of offset and length.
std::vector<FileRegion> regions_of(const Napi::Value& value) {
  const auto pairs = value.As<Napi::Float64Array>();
  std::vector<FileRegion> regions;
  for (size_t i = 0; i + 1 < pairs.ElementLength(); i += 2) {
    regions.push_back({static_cast<uint64_t>(pairs[i]), static_cast<uint64_t>(pairs[i + 1])});
  }
  return regions;
}

IoOptions options_of(const Napi::Object& options) {
  IoOptions result;
  result.block = whole<uint32_t>(options, "block", 4096, kMaxBlock);
  if (result.block % 4096) throw Error("USAGE", "block is not a multiple of 4096");
  result.depth = whole<unsigned>(options, "depth", 1, kMaxDepth);
  result.mode = options.Get("mode").ToString().Utf8Value() == "buffered" ? IoMode::buffered : IoMode::automatic;
  return result;
}

Napi::Value region_value(Napi::Env env, const RegionRead& read) {
  auto result = Napi::Object::New(env);
  result.Set("bytes", static_cast<double>(read.bytes));
  result.Set("seconds", read.seconds);
  result.Set("direct", read.stats.direct);
  result.Set("uring", read.stats.uring);
  result.Set("reason", read.stats.reason);
  result.Set("folded", Napi::BigInt::New(env, read.folded));
  return result;
}

Napi::Value read(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    const int fd = info[0].ToNumber();
    const auto given = info[2].ToObject();
    const IoOptions options = options_of(given);
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
