#include "disk.h"

#include "../io/speed.h"
#include "io_values.h"
#include "work.h"

namespace cflow {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 53;
constexpr int64_t kMaxMilliseconds = 600'000;

Napi::Value speed_value(Napi::Env env, const DiskSpeed& speed) {
  auto result = Napi::Object::New(env);
  result.Set("bytes", static_cast<double>(speed.bytes));
  result.Set("seconds", speed.seconds);
  set_way(result, speed.stats);
  return result;
}

Napi::Value disk_bandwidth(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    if (!info[2].IsObject()) throw Error("USAGE", "diskBandwidth needs options");
    const auto given = info[2].As<Napi::Object>();
    const int fd = whole(info[0], "fd", 0, INT32_MAX);
    const auto size = whole<uint64_t>(info[1], "size", 0, kMaxSize);
    const auto milliseconds = whole<unsigned>(given, "milliseconds", 1, kMaxMilliseconds);
    const IoOptions options = io_options(given);
    return Work<DiskSpeed>::start(
        info.Env(), [=] { return measure_disk(fd, size, options, milliseconds); }, speed_value);
  });
}

}  // namespace

void export_disk(Napi::Env env, Napi::Object exports) {
  exports.Set("diskBandwidth", Napi::Function::New(env, disk_bandwidth, "diskBandwidth"));
}

}  // namespace cflow
