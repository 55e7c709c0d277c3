#include "bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "../base/memory.h"
#include "options.h"
#include "work.h"

namespace cflow {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 46;
constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxRuns = 1000;

/// 64 bytes, whatever the widest register is: the compiler splits it.
typedef uint64_t Wide __attribute__((vector_size(64)));
constexpr size_t kAccumulators = 8;
constexpr size_t kStep = kAccumulators * sizeof(Wide);

/// XOR of all of `bytes`, a multiple of kStep: eight chains, so that loads and not their use are what takes time.
uint64_t read_all(const uint8_t* from, size_t bytes) {
  Wide sums[kAccumulators] = {};
  for (size_t at = 0; at < bytes; at += kStep) {
    const auto* step = reinterpret_cast<const Wide*>(from + at);
    for (size_t i = 0; i < kAccumulators; i++) sums[i] ^= step[i];
  }
  uint64_t all = 0;
  for (const Wide& sum : sums) {
    for (size_t lane = 0; lane < sizeof(Wide) / sizeof(uint64_t); lane++) all ^= sum[lane];
  }
  return all;
}

/// A share of the memory for each of a number of threads, which start together.
class Readers {
 public:
  Readers(const uint8_t* data, size_t bytes, unsigned threads) : data_(data), share_(bytes / threads), count_(threads) {}

  /// Bytes that all threads read together.
  size_t bytes() const { return share_ * count_; }

  /// Seconds from the moment that all threads stand ready until the last has read its share.
  /// @throws std::system_error if a thread is refused
  double measure() {
    ready_ = 0;
    go_ = 0;
    std::vector<std::thread> threads;
    try {
      for (unsigned i = 0; i < count_; i++) threads.emplace_back([this, i] { work(i); });
    } catch (...) {
      go_ = -1;
      for (std::thread& thread : threads) thread.join();
      throw;
    }
    while (ready_.load() < count_) std::this_thread::yield();
    const auto start = std::chrono::steady_clock::now();
    go_ = 1;
    for (std::thread& thread : threads) thread.join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  void work(unsigned index) {
    ready_++;
    int go;
    while ((go = go_.load()) == 0) std::this_thread::yield();
    if (go > 0) sink_ ^= read_all(data_ + index * share_, share_);
  }

  const uint8_t* data_;
  size_t share_;
  unsigned count_;
  std::atomic<unsigned> ready_{0};
  std::atomic<int> go_{0};
  /// Keeps the reads from being optimized away.
  std::atomic<uint64_t> sink_{0};
};

/// GB/s of each run. @throws Error MEMORY, LIMIT_EXCEEDED
std::vector<double> measure(size_t bytes, unsigned threads, unsigned runs) {
  const Block block(bytes, "the measurement of memory");
  // Not zeros: a page that was never written is one shared page of zeros.
  std::memset(block.data(), 0x5a, bytes);
  Readers readers(block.data(), bytes, threads);
  std::vector<double> speeds;
  try {
    for (unsigned run = 0; run < runs; run++) {
      speeds.push_back(static_cast<double>(readers.bytes()) / readers.measure() / 1e9);
    }
  } catch (const std::system_error& error) {
    throw Error("LIMIT_EXCEEDED", "cannot start " + std::to_string(threads) + " threads: " + error.what());
  }
  return speeds;
}

Napi::Value speeds_value(Napi::Env env, const std::vector<double>& speeds) {
  auto array = Napi::Array::New(env, speeds.size());
  for (size_t i = 0; i < speeds.size(); i++) array.Set(static_cast<uint32_t>(i), speeds[i]);
  return array;
}

Napi::Value read_bandwidth(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    const auto asked = whole<size_t>(info[0], "bytes", 1, kMaxBytes);
    const auto threads = whole<unsigned>(info[1], "threads", 1, kMaxThreads);
    const auto runs = whole<unsigned>(info[2], "runs", 1, kMaxRuns);
    const size_t unit = kStep * threads;
    const size_t bytes = std::max(unit, asked / unit * unit);
    return Work<std::vector<double>>::start(
        info.Env(), [=] { return measure(bytes, threads, runs); }, speeds_value);
  });
}

}  // namespace

void export_bandwidth(Napi::Env env, Napi::Object exports) {
  exports.Set("readBandwidth", Napi::Function::New(env, read_bandwidth, "readBandwidth"));
}

}  // namespace cflow
