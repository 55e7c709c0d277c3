#include "disk.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "../io/speed.h"
#include "env_state.h"

namespace cflow {
namespace {

constexpr double kMaxBlock = 1u << 30;
constexpr double kMaxDepth = 256;
constexpr double kMaxMilliseconds = 600'000;

struct Asked {
  int fd;
  uint64_t size;
  IoOptions options;
  unsigned milliseconds;
};

class DiskMeasurement : public Napi::AsyncWorker {
 public:
  DiskMeasurement(Napi::Env env, const Asked& asked)
      : AsyncWorker(env), deferred_(Napi::Promise::Deferred::New(env)), asked_(asked) {}

  Napi::Promise promise() const { return deferred_.Promise(); }

  void Execute() override {
    try {
      speed_ = measure_disk(asked_.fd, asked_.size, asked_.options, asked_.milliseconds);
    } catch (const Error& error) {
      fail(error);
    } catch (const std::exception& error) {
      fail(unexpected_error(error));
    }
  }

  void OnOK() override {
    auto result = Napi::Object::New(Env());
    result.Set("bytes", static_cast<double>(speed_.bytes));
    result.Set("seconds", speed_.seconds);
    result.Set("direct", speed_.stats.direct);
    result.Set("uring", speed_.stats.uring);
    result.Set("reason", speed_.stats.reason);
    deferred_.Resolve(result);
  }

  void OnError(const Napi::Error&) override { deferred_.Reject(to_js_error(Env(), *error_).Value()); }

 private:
  void fail(const Error& error) {
    error_ = std::make_unique<Error>(error);
    SetError(error.what());
  }

  Napi::Promise::Deferred deferred_;
  const Asked asked_;
  DiskSpeed speed_;
  std::unique_ptr<Error> error_;
};

/// A whole number from `least` to `most`.
double whole(const Napi::Value& value, const char* name, double least, double most) {
  const double x = value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : std::nan("");
  if (x >= least && x <= most && x == std::floor(x)) return x;
  const auto in_words = [](double limit) { return std::to_string(static_cast<int64_t>(limit)); };
  throw Error("USAGE", std::string(name) + " is not a whole number from " + in_words(least) + " to " + in_words(most));
}

/// The place of a word among those allowed.
uint8_t choice(const Napi::Value& value, const char* name, const std::vector<std::string>& words) {
  const std::string word = value.IsString() ? value.As<Napi::String>().Utf8Value() : "";
  const auto at = std::find(words.begin(), words.end(), word);
  if (at == words.end()) throw Error("USAGE", std::string(name) + " cannot be \"" + word + "\"");
  return static_cast<uint8_t>(at - words.begin());
}

Asked read_arguments(const Napi::CallbackInfo& info) {
  if (!info[2].IsObject()) throw Error("USAGE", "diskBandwidth needs options");
  const auto options = info[2].As<Napi::Object>();
  Asked asked;
  asked.fd = static_cast<int>(whole(info[0], "fd", 0, INT32_MAX));
  asked.size = static_cast<uint64_t>(whole(info[1], "size", 0, 0x1p53));
  asked.milliseconds = static_cast<unsigned>(whole(options.Get("milliseconds"), "milliseconds", 1, kMaxMilliseconds));
  asked.options.block = static_cast<uint32_t>(whole(options.Get("block"), "block", 1, kMaxBlock));
  asked.options.depth = static_cast<unsigned>(whole(options.Get("depth"), "depth", 1, kMaxDepth));
  asked.options.backend = IoBackend{choice(options.Get("backend"), "backend", {"auto", "uring", "threads"})};
  asked.options.mode = IoMode{choice(options.Get("mode"), "mode", {"auto", "buffered"})};
  return asked;
}

Napi::Value disk_bandwidth(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    auto* work = new DiskMeasurement(info.Env(), read_arguments(info));
    const Napi::Promise promise = work->promise();
    work->Queue();
    return promise;
  });
}

}  // namespace

void export_disk(Napi::Env env, Napi::Object exports) {
  exports.Set("diskBandwidth", Napi::Function::New(env, disk_bandwidth, "diskBandwidth"));
}

}  // namespace cflow
