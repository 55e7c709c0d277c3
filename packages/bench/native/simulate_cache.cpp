#include "simulate_cache.h"

#include <algorithm>
#include <deque>
#include <span>

#include "addon/options.h"
#include "addon/work.h"
#include "tiers/expert_cache.h"

namespace cflow {
namespace {

constexpr int kMaxKeys = 1 << 24;

struct Replay {
  /// Experts of all layers, call by call.
  std::vector<int32_t> keys;
  /// Keys of each call of a token, and the first key of each layer, with the number of all.
  std::vector<int32_t> calls, first_keys;
  int slots, in_flight;
  double half_life;
  bool repeat;
};

struct Replayed {
  uint64_t hits = 0, misses = 0;
};

/// A call as ExpertStore makes it: those in memory are held first, then the others are let in.
class Calls {
 public:
  explicit Calls(const Replay& replay)
      : in_flight_(static_cast<size_t>(replay.in_flight)),
        cache_({replay.first_keys.begin(), replay.first_keys.end()}, static_cast<uint32_t>(replay.slots), replay.half_life,
               replay.repeat ? ExpertCache::kRepeat : 0),
        holds_(static_cast<size_t>(replay.slots)) {}

  void begin() {
    held_.clear();
    std::fill(holds_.begin(), holds_.end(), 0);
    cache_.pass(1);
  }

  void call(std::span<const int32_t> keys, Replayed& counts) {
    if (held_.size() == in_flight_) release();
    auto& held = held_.emplace_back();
    const auto hold = [&](uint32_t slot) {
      holds_[slot]++;
      held.push_back(slot);
    };
    std::vector<uint32_t> missing;
    for (const int32_t each : keys) {
      const auto key = static_cast<uint32_t>(each);
      cache_.touch(key, 1);
      const uint32_t slot = cache_.slot_of(key);
      if (slot == ExpertCache::kNone) missing.push_back(key);
      else hold(slot);
    }
    for (const uint32_t key : missing) hold(cache_.admit(key, [this](uint32_t slot) { return holds_[slot] == 0; }));
    counts.misses += missing.size();
    counts.hits += keys.size() - missing.size();
  }

 private:
  void release() {
    for (const uint32_t slot : held_.front()) holds_[slot]--;
    held_.pop_front();
  }

  const size_t in_flight_;
  ExpertCache cache_;
  /// By slot: calls that hold it.
  std::vector<uint32_t> holds_;
  /// By call, the oldest first.
  std::deque<std::vector<uint32_t>> held_;
};

Replayed replay(const Replay& replay) {
  Calls calls(replay);
  Replayed counts;
  for (size_t at = 0; at < replay.keys.size();) {
    calls.begin();
    for (const int32_t count : replay.calls) {
      calls.call({replay.keys.data() + at, static_cast<size_t>(count)}, counts);
      at += static_cast<size_t>(count);
    }
  }
  return counts;
}

std::vector<int32_t> numbers(const Napi::Object& options, const char* field) {
  const Napi::Value value = options.Get(field);
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != napi_int32_array) {
    throw Error("USAGE", std::string(field) + " is no Int32Array");
  }
  const auto array = value.As<Napi::Int32Array>();
  return {array.Data(), array.Data() + array.ElementLength()};
}

Replay read_replay(const Napi::Object& options) {
  Replay replay{numbers(options, "keys"), numbers(options, "calls"), numbers(options, "firstKeys"),
                whole(options, "slots", 1, kMaxKeys), whole(options, "inFlight", 1, kMaxKeys),
                options.Get("halfLife").ToNumber().DoubleValue(), options.Get("repeat").ToBoolean()};
  const std::vector<int32_t>& first = replay.first_keys;
  if (first.size() != replay.calls.size() + 1 || first[0] != 0 || first.back() > kMaxKeys ||
      !std::is_sorted(first.begin(), first.end())) {
    throw Error("USAGE", "firstKeys are not those of the calls, ascending from 0");
  }
  int64_t per_token = 0;
  int64_t most = 0;
  for (const int32_t count : replay.calls) {
    if (count < 1) throw Error("USAGE", "calls: a call without a key");
    per_token += count;
    most = std::max<int64_t>(most, count);
  }
  if (per_token == 0 || replay.keys.size() % static_cast<uint64_t>(per_token) != 0) {
    throw Error("USAGE", "keys are no whole number of tokens");
  }
  for (const int32_t key : replay.keys) {
    if (key < 0 || key >= first.back()) throw Error("USAGE", "keys: " + std::to_string(key) + " is none");
  }
  if (!(replay.half_life >= 0)) throw Error("USAGE", "halfLife is not 0 or more");
  if (replay.slots < most * replay.in_flight) throw Error("USAGE", "slots are too few for the calls in flight");
  return replay;
}

Napi::Value counts_value(Napi::Env env, const Replayed& counts) {
  auto result = Napi::Object::New(env);
  result.Set("hits", static_cast<double>(counts.hits));
  result.Set("misses", static_cast<double>(counts.misses));
  return result;
}

Napi::Value simulate_cache(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    const Replay read = read_replay(info[0].ToObject());
    return Work<Replayed>::start(info.Env(), [read] { return replay(read); }, counts_value);
  });
}

}  // namespace

void export_cache_simulator(Napi::Env env, Napi::Object exports) {
  exports.Set("simulateCache", Napi::Function::New(env, simulate_cache, "simulateCache"));
}

}  // namespace cflow
