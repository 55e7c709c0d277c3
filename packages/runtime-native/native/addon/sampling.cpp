#include "sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

namespace cflow {
namespace {

// src/sampling/selection.ts defines what this computes. The operations and their order are the same, so the ids are.

constexpr int kBinShift = 15;
constexpr int kFirstBin = (127 - 6) << (23 - kBinShift);
constexpr int kBins = (16 << (23 - kBinShift)) + 2;

constexpr double kMinExponent = -708;
constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2High = 0.6931471803691238;
constexpr double kLn2Low = 1.9082149292705877e-10;
constexpr double kRounder = 6755399441055744;

#if defined(__x86_64__) && defined(__GNUC__)
#define CFLOW_AVX2 __attribute__((target("avx2")))
#define CFLOW_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#define CFLOW_INLINE inline __attribute__((always_inline))

CFLOW_INLINE double exp_negative(double x) {
  const double clamped = x < kMinExponent ? kMinExponent : x;
  const double shifted = clamped * kLog2E + kRounder;
  const double n = shifted - kRounder;
  const double r = clamped - n * kLn2High - n * kLn2Low;
  double p = 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 1.0 / 2;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // The low bits of the sum hold n; 2^n has the exponent 1023 + n.
  const uint64_t power = (std::bit_cast<uint64_t>(shifted) << 52) + (uint64_t{1023} << 52);
  const double result = p * std::bit_cast<double>(power);
  return x < kMinExponent ? 0.0 : result;
}

CFLOW_INLINE int bin_of_depth(float depth) {
  const int bin = (std::bit_cast<int32_t>(depth) >> kBinShift) - kFirstBin + 1;
  const int from_zero = bin < 0 ? 0 : bin;
  return from_zero > kBins - 1 ? kBins - 1 : from_zero;
}

struct Row {
  const float* logits;
  size_t count;
  float largest;
  double inverse_temperature;

  double depth_of(uint32_t id) const { return static_cast<double>(largest) - static_cast<double>(logits[id]); }
  double weight(uint32_t id) const { return exp_negative(-depth_of(id) * inverse_temperature); }
};

struct Bins {
  double sums[kBins] = {};
  int32_t counts[kBins] = {};
};

/// Elements whose weights are computed before they are added to their bins.
constexpr size_t kBlock = 256;

CFLOW_INLINE void fill_bins(const Row& row, Bins& bins) {
  alignas(64) double weights[kBlock];
  alignas(64) int32_t where[kBlock];
  const double largest = static_cast<double>(row.largest);
  const double inverse_temperature = row.inverse_temperature;
  for (size_t start = 0; start < row.count; start += kBlock) {
    const float* logits = row.logits + start;
    const size_t n = std::min(kBlock, row.count - start);
    for (size_t i = 0; i < n; i++) {
      weights[i] = exp_negative(-(largest - static_cast<double>(logits[i])) * inverse_temperature);
    }
    for (size_t i = 0; i < n; i++) where[i] = bin_of_depth(row.largest - logits[i]);
    for (size_t i = 0; i < n; i++) {
      bins.sums[where[i]] += weights[i];
      bins.counts[where[i]]++;
    }
  }
}

/// The largest logit; NaN if there is one.
CFLOW_INLINE float find_largest(const float* logits, size_t count) {
  constexpr size_t lanes = 32;
  float most[lanes];
  int32_t unordered[lanes] = {};
  std::fill_n(most, lanes, -std::numeric_limits<float>::infinity());
  size_t start = 0;
  for (; start + lanes <= count; start += lanes) {
    for (size_t i = 0; i < lanes; i++) {
      const float logit = logits[start + i];
      most[i] = logit > most[i] ? logit : most[i];
      unordered[i] |= logit == logit ? 0 : 1;
    }
  }
  for (; start < count; start++) {
    most[0] = std::max(most[0], logits[start]);
    unordered[0] |= logits[start] == logits[start] ? 0 : 1;
  }
  const bool nan = std::any_of(unordered, unordered + lanes, [](int32_t each) { return each != 0; });
  return nan ? std::numeric_limits<float>::quiet_NaN() : *std::max_element(most, most + lanes);
}

/// Ids of a bin, in their order.
CFLOW_INLINE void gather(const Row& row, int bin, size_t count, std::vector<uint32_t>& ids) {
  ids.reserve(count);
  for (size_t start = 0; ids.size() < count; start += kBlock) {
    const size_t n = std::min(kBlock, row.count - start);
    int32_t found = 0;
    for (size_t i = 0; i < n; i++) found |= bin_of_depth(row.largest - row.logits[start + i]) == bin ? 1 : 0;
    if (!found) continue;
    for (size_t i = 0; i < n; i++) {
      if (bin_of_depth(row.largest - row.logits[start + i]) == bin) ids.push_back(static_cast<uint32_t>(start + i));
    }
  }
}

/// What depends on the instruction set.
struct Loops {
  float (*largest)(const float*, size_t);
  void (*fill)(const Row&, Bins&);
  void (*gather)(const Row&, int, size_t, std::vector<uint32_t>&);
};

float largest_baseline(const float* logits, size_t count) { return find_largest(logits, count); }
void fill_baseline(const Row& row, Bins& bins) { fill_bins(row, bins); }
void gather_baseline(const Row& row, int bin, size_t count, std::vector<uint32_t>& ids) { gather(row, bin, count, ids); }

#if defined(CFLOW_AVX2)
CFLOW_AVX2 float largest_avx2(const float* logits, size_t count) { return find_largest(logits, count); }
CFLOW_AVX2 void fill_avx2(const Row& row, Bins& bins) { fill_bins(row, bins); }
CFLOW_AVX2 void gather_avx2(const Row& row, int bin, size_t count, std::vector<uint32_t>& ids) {
  gather(row, bin, count, ids);
}
CFLOW_AVX512 void fill_avx512(const Row& row, Bins& bins) { fill_bins(row, bins); }
#endif

const Loops& loops() {
  static const Loops chosen = [] {
#if defined(CFLOW_AVX2)
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512) return Loops{largest_avx2, fill_avx512, gather_avx2};
    if (__builtin_cpu_supports("avx2")) return Loops{largest_avx2, fill_avx2, gather_avx2};
#endif
    return Loops{largest_baseline, fill_baseline, gather_baseline};
  }();
  return chosen;
}

/// As the class Candidates of selection.ts.
class Candidates {
 public:
  explicit Candidates(const Row& row) : row_(row) {
    loops().fill(row_, bins_);
    cut_at(kBins, 0);
  }

  void keep_most(int64_t count) {
    int64_t before = 0;
    int bin = 0;
    while (bin < kBins && before + bins_.counts[bin] <= count) before += bins_.counts[bin++];
    cut_at(bin, static_cast<int32_t>(count - before));
  }

  void keep_share(double share) {
    const double enough = share * total_;
    double reached = 0;
    for (int bin = 0; bin <= end_ && bin < kBins; bin++) {
      const int32_t count = kept_of(bin);
      if (count == 0) continue;
      if (bin < end_ && reached + bins_.sums[bin] < enough) {
        reached += bins_.sums[bin];
        continue;
      }
      const auto& ids = ids_of(bin);
      for (int32_t i = 0; i < count; i++) {
        reached += row_.weight(ids[static_cast<size_t>(i)]);
        if (reached >= enough) return cut_at(bin, i + 1);
      }
    }
  }

  void keep_within(double depth) {
    const int bin = bin_of_depth(static_cast<float>(depth));
    if (bin > end_ || bin >= kBins) return;
    const int32_t last = kept_of(bin);
    const auto& ids = ids_of(bin);
    int32_t count = 0;
    while (count < last && row_.depth_of(ids[static_cast<size_t>(count)]) <= depth) count++;
    cut_at(bin, count);
  }

  uint32_t draw(double random) {
    double left = random * total_;
    int64_t likely = -1;
    for (int bin = 0; bin <= end_ && bin < kBins; bin++) {
      const int32_t count = kept_of(bin);
      if (count == 0) continue;
      if (bin < end_ && left >= bins_.sums[bin]) {
        left -= bins_.sums[bin];
        continue;
      }
      const auto& ids = ids_of(bin);
      for (int32_t i = 0; i < count; i++) {
        const uint32_t id = ids[static_cast<size_t>(i)];
        const double weight = row_.weight(id);
        left -= weight;
        if (weight > 0) likely = id;
        if (left < 0) return id;
      }
    }
    if (likely >= 0) return static_cast<uint32_t>(likely);
    int first = 0;
    while (bins_.counts[first] == 0) first++;
    return ids_of(first)[0];
  }

 private:
  int32_t kept_of(int bin) const { return bin < end_ ? bins_.counts[bin] : partial_; }

  void cut_at(int end, int32_t partial) {
    end_ = end;
    partial_ = partial;
    total_ = 0;
    for (int bin = 0; bin < end; bin++) total_ += bins_.sums[bin];
    if (partial == 0) return;
    const auto& ids = ids_of(end);
    for (int32_t i = 0; i < partial; i++) total_ += row_.weight(ids[static_cast<size_t>(i)]);
  }

  const std::vector<uint32_t>& ids_of(int bin) {
    auto& ids = sorted_[bin];
    if (!ids.empty() || bins_.counts[bin] == 0) return ids;
    loops().gather(row_, bin, static_cast<size_t>(bins_.counts[bin]), ids);
    const float* logits = row_.logits;
    std::sort(ids.begin(), ids.end(), [logits](uint32_t a, uint32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    return ids;
  }

  Row row_;
  Bins bins_;
  std::unordered_map<int, std::vector<uint32_t>> sorted_;
  int end_ = kBins;
  int32_t partial_ = 0;
  double total_ = 0;
};

/// selectToken(logits, inverseTemperature, topK, topP, depth, random): an id, or -1 without a largest finite logit.
Napi::Value select_token(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const bool fits = info.Length() == 6 && info[0].IsTypedArray() &&
                    info[0].As<Napi::TypedArray>().TypedArrayType() == napi_float32_array &&
                    info[1].IsNumber() && info[2].IsNumber() && info[3].IsNumber() && info[4].IsNumber() &&
                    info[5].IsNumber();
  if (!fits) {
    Napi::TypeError::New(env, "selectToken: wrong arguments").ThrowAsJavaScriptException();
    return env.Undefined();
  }
  const auto logits = info[0].As<Napi::Float32Array>();
  const auto number = [&info](size_t i) { return info[i].As<Napi::Number>().DoubleValue(); };
  const size_t count = logits.ElementLength();
  const float largest = count == 0 ? std::numeric_limits<float>::quiet_NaN() : loops().largest(logits.Data(), count);
  if (!std::isfinite(largest)) return Napi::Number::New(env, -1);
  try {
    Candidates candidates({logits.Data(), count, largest, number(1)});
    const double top_k = number(2);
    if (top_k > 0 && top_k < static_cast<double>(count)) candidates.keep_most(static_cast<int64_t>(top_k));
    if (number(3) < 1) candidates.keep_share(number(3));
    if (number(4) < std::numeric_limits<double>::infinity()) candidates.keep_within(number(4));
    return Napi::Number::New(env, candidates.draw(number(5)));
  } catch (const std::bad_alloc&) {
    Napi::Error::New(env, "selectToken: out of memory").ThrowAsJavaScriptException();
    return env.Undefined();
  }
}

}  // namespace

void export_sampling(Napi::Env env, Napi::Object exports) {
  exports.Set("selectToken", Napi::Function::New(env, select_token, "selectToken"));
}

}  // namespace cflow
