// A small model of every kind of step, made here, and the ways to run it: in memory, or fetched while it runs.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "../engine/engine.h"

namespace engine_test {

using namespace cflow;

inline std::atomic<long> checks{0};

inline void check(bool holds, const std::string& what) {
  checks++;
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

/// Deterministic values in (-1, 1).
class Random {
 public:
  float next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) / 2147483648.0f;
  }

 private:
  uint64_t state_ = 42;
};

/// A model file under construction: f32 tiles, so that scalar arithmetic is easy to follow.
class FileMaker {
 public:
  /// Stripes count from `base`.
  TiledMatrix matrix(uint32_t rows, uint32_t cols, uint64_t base = 0) {
    TiledMatrix m{rows, cols, {}};
    const float scale = 1.0f / std::sqrt(static_cast<float>(cols));
    for (uint32_t row = 0; row < rows; row += kTileRows) {
      const int height = static_cast<int>(std::min<uint32_t>(kTileRows, rows - row));
      m.stripes.push_back(bytes.size() - base);
      for (uint32_t col = 0; col < cols; col += kTileCols) {
        const int width = static_cast<int>(std::min<uint32_t>(kTileCols, cols - col));
        bytes.resize(bytes.size() + kTileHeaderBytes);
        for (int i = 0; i < height * width; i++) put(scale * random_.next());
      }
    }
    return m;
  }
  Offset vector(uint32_t n) {
    const auto at = static_cast<Offset>(bytes.size());
    for (uint32_t i = 0; i < n; i++) put(1 + 0.1f * random_.next());
    return at;
  }
  void put(float value) {
    bytes.resize(bytes.size() + 4);
    std::memcpy(bytes.data() + bytes.size() - 4, &value, 4);
  }
  /// Where a part begins that can be fetched.
  uint64_t begin() {
    bytes.resize(align_io(bytes.size()));
    return bytes.size();
  }
  FetchRegion since(uint64_t from) const { return {from, bytes.size() - from}; }
  std::vector<uint8_t> bytes;

 private:
  Random random_;
};

constexpr uint32_t kDim = 72, kHeads = 6, kKvHeads = 3, kHeadDim = 12, kFfn = 200, kVocab = 300;
constexpr uint32_t kExperts = 5, kTopK = 2, kExpertDim = 40, kHidden = kTopK * 64;
constexpr uint32_t kContext = 300, kWindow = 70;

struct Model {
  Program program;
  std::vector<uint8_t> bytes;
};

/// When what is fetched is called.
enum class Fetch { none, stall, overlap, predict };

/// Layers with windowed attention, a gated FFN and routed experts on a residual. What `fetch` says changes how the
/// program runs, never the file: attention, FFN and head are streams, experts are banks, the rest is in memory.
class ModelMaker {
 public:
  explicit ModelMaker(Fetch fetch) : fetch_(fetch) {}

  Model make(uint32_t layers) {
    p_.dtype = Dtype::f32;
    p_.buffers = {kDim, kDim, kHeads * kHeadDim, kKvHeads * kHeadDim, kKvHeads * kHeadDim, kHeads * kHeadDim, kDim,
                  kFfn, kDim, kExperts, 2 * kTopK, kHidden, kDim, kVocab};
    p_.ropes = {{1.0, 0.5, 0.1, 0.01, 0.001, 0.0001}};
    const uint64_t start = file_.bytes.size();
    serial(step::Embed{file_.matrix(kVocab, kDim), 2.0f, x});
    p_.resident.push_back(file_.since(start));
    serial(norm());
    for (uint32_t layer = 0; layer < layers; layer++) add_layer(layer, layers);
    end_phase();
    const Part head = part();
    parallel(step::Matvec{normed, {{logits, matrix(head, kVocab, kDim), -1}}, head.stream});
    end_part(head, phases_.size());
    serial(step::Softcap{logits, 30});
    p_.head_phase = static_cast<uint32_t>(phases_.size());
    p_.output = logits;
    p_.vocab_size = kVocab;
    p_.context_length = kContext;
    end_phase();
    place_streams();
    p_.phases = phases_;
    return {std::move(p_), std::move(file_.bytes)};
  }

 private:
  enum : BufferId { x, normed, q, k, v, heads, attn, hidden, ffn, router, routing, expert_hidden, experts, logits };

  /// A stream under construction.
  struct Part {
    uint64_t from;
    uint32_t stream;
    size_t first_phase;
  };

  uint32_t add(Step step) {
    p_.steps.push_back(std::move(step));
    return static_cast<uint32_t>(p_.steps.size() - 1);
  }
  void parallel(Step step) { phase_.parallel.push_back(add(std::move(step))); }
  void serial(Step step) { phase_.serial.push_back(add(std::move(step))); }
  void transfer(Step step) {
    if (fetch_ != Fetch::none) phase_.transfers.push_back(add(std::move(step)));
  }
  void end_phase() { phases_.push_back(std::exchange(phase_, {})); }

  Part part() {
    const uint64_t from = file_.begin();
    if (fetch_ == Fetch::none) return {from, kInMemory, 0};
    p_.streams.push_back({from, 0});
    return {from, static_cast<uint32_t>(p_.streams.size() - 1), phases_.size()};
  }
  TiledMatrix matrix(const Part& part, uint32_t rows, uint32_t cols) {
    return file_.matrix(rows, cols, part.stream == kInMemory ? 0 : part.from);
  }
  struct Use {
    uint32_t stream;
    size_t first;
    size_t last;
  };
  void end_part(const Part& part, size_t last_phase) {
    if (part.stream == kInMemory) return;
    p_.streams[part.stream] = file_.since(part.from);
    uses_.push_back({part.stream, part.first_phase, last_phase});
  }

  /// Called at the end of the phase before the first use, released at the end of the last.
  void place_streams() {
    for (const Use& use : uses_) phases_[use.last].transfers.push_back(add(step::ReleaseStream{use.stream}));
    for (const Use& use : uses_) {
      auto& transfers = phases_[use.first - 1].transfers;
      transfers.push_back(add(step::CallStream{use.stream}));
      if (fetch_ == Fetch::stall) transfers.push_back(add(step::SyncStream{use.stream}));
    }
  }

  step::RmsNorm norm() { return {x, plain(kDim), kDim, kDim, 1e-5f, normed}; }
  Offset plain(uint32_t n) {
    const uint64_t start = file_.bytes.size();
    const Offset at = file_.vector(n);
    p_.resident.push_back(file_.since(start));
    return at;
  }

  void add_layer(uint32_t layer, uint32_t layers) {
    end_phase();
    p_.caches.push_back({kKvHeads, kHeadDim, kWindow});
    const Offset k_bias = plain(kKvHeads * kHeadDim);
    const Offset up_bias = plain(kFfn);
    // All matrices of a stream stand together, so they are made before the steps.
    const Part attention = part();
    TiledMatrix mq = matrix(attention, kHeads * kHeadDim, kDim);
    TiledMatrix mk = matrix(attention, kKvHeads * kHeadDim, kDim);
    TiledMatrix mv = matrix(attention, kKvHeads * kHeadDim, kDim);
    TiledMatrix mo = matrix(attention, kDim, kHeads * kHeadDim);
    end_part(attention, phases_.size() + 2);
    const Part dense = part();
    TiledMatrix gate = matrix(dense, kFfn, kDim);
    TiledMatrix up = matrix(dense, kFfn, kDim);
    TiledMatrix down = matrix(dense, kDim, kFfn);
    end_part(dense, phases_.size() + 1);
    parallel(step::Matvec{normed, {{q, mq, -1}, {k, mk, k_bias}, {v, mv, -1}}, attention.stream});
    parallel(step::GatedMatvec{normed, gate, up, -1, up_bias, Activation::silu, hidden, dense.stream});
    serial(step::Rope{q, kHeadDim, 0});
    serial(step::Rope{k, kHeadDim, 0});
    serial(step::Append{layer, k, v});
    end_phase();
    parallel(step::Attend{layer, q, heads, kHeads, 0.3f, 20.0f, kWindow});
    parallel(step::Matvec{hidden, {{ffn, down, -1}}, dense.stream});
    end_phase();
    parallel(step::Matvec{heads, {{attn, mo, -1}}, attention.stream});
    serial(step::Sum{{x, attn, ffn}, {1, 1, 0.7f}, x});
    serial(norm());
    end_phase();
    add_experts(layer, layers);
  }

  void add_experts(uint32_t layer, uint32_t layers) {
    parallel(step::PlainMatvec{normed, plain(kExperts * kDim), kExperts, kDim, router});
    serial(step::Route{router, kTopK, true, routing});
    const bool fetched = fetch_ != Fetch::none;
    TiledMatrix gate, up, down;
    std::vector<uint64_t> bases;
    std::vector<FetchRegion> bank;
    for (uint32_t e = 0; e < kExperts; e++) {
      const uint64_t from = file_.begin();
      bases.push_back(from);
      gate = file_.matrix(kExpertDim, kDim, from);
      up = file_.matrix(kExpertDim, kDim, from);
      down = file_.matrix(kDim, kExpertDim, from);
      bank.push_back(file_.since(from));
    }
    if (fetched) p_.banks.push_back(std::move(bank));
    const uint32_t number = fetched ? layer : kInMemory;
    // A guess, made first: what this layer chose, the next will choose.
    if (fetch_ == Fetch::predict && layer + 1 < layers) transfer(step::CallExperts{layer + 1, routing, kTopK, true});
    transfer(step::CallExperts{layer, routing, kTopK, false});
    if (fetch_ == Fetch::stall) transfer(step::SyncExperts{layer});
    end_phase();
    parallel(step::ExpertsUp{normed, routing, kTopK, kExpertDim, Activation::gelu, expert_hidden, bases, gate, up, number});
    end_phase();
    parallel(step::ExpertsDown{expert_hidden, routing, kTopK, kExpertDim, experts, bases, down, number});
    serial(step::Sum{{x, experts}, {1, 1}, x});
    serial(norm());
    transfer(step::ReleaseExperts{layer});
  }

  const Fetch fetch_;
  FileMaker file_;
  Program p_{};
  Phase phase_;
  std::vector<Phase> phases_;
  std::vector<Use> uses_;
};

inline Model make_model(uint32_t layers = 1, Fetch fetch = Fetch::none) { return ModelMaker(fetch).make(layers); }

/// A file that is gone from its directory, and lives while its descriptor does.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::vector<uint8_t>& bytes) {
    const char* folder = std::getenv("TMPDIR");
    std::string name = std::string(folder ? folder : "/tmp") + "/cflow-engine-test-XXXXXX";
    fd_ = mkstemp(name.data());
    check(fd_ >= 0, "a temporary file");
    unlink(name.c_str());
    check(write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "writing the model");
  }
  ~TemporaryFile() { close(fd_); }
  TemporaryFile(const TemporaryFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

struct Result {
  std::string code;
  std::string message;
  std::vector<float> logits;
};

/// What one session of a batch passes.
struct Part {
  std::shared_ptr<Session> session;
  std::vector<int32_t> ids;
  Logits logits = Logits::last;
};

/// Submits and waits, as a caller does that has nothing else to do.
inline std::vector<Result> run_batch(Engine& engine, const std::vector<Part>& parts) {
  std::vector<Result> results(parts.size());
  std::mutex mutex;
  std::condition_variable ready;
  bool done = false;
  Job job;
  for (size_t i = 0; i < parts.size(); i++) {
    const auto& [session, ids, logits] = parts[i];
    results[i].logits.resize(kVocab * (logits == Logits::all ? ids.size() : logits == Logits::last ? 1 : 0));
    job.runs.push_back({session, ids, results[i].logits.data(), logits, {}, 0});
  }
  job.done = [&](const std::vector<Run>& runs) {
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < runs.size(); i++) {
      if (!runs[i].error) continue;
      results[i].code = runs[i].error->code();
      results[i].message = runs[i].error->what();
    }
    done = true;
    ready.notify_one();
  };
  engine.submit(std::move(job));
  std::unique_lock lock(mutex);
  ready.wait(lock, [&] { return done; });
  return results;
}

inline Result run(Engine& engine, const std::shared_ptr<Session>& session, std::vector<int32_t> ids, bool all = false) {
  return run_batch(engine, {{session, std::move(ids), all ? Logits::all : Logits::last}})[0];
}

inline std::vector<int32_t> prompt(size_t n) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < n; i++) ids.push_back(static_cast<int32_t>((i * 37 + 11) % kVocab));
  return ids;
}

inline EngineOptions options_with(unsigned threads, const Kernels* kernels, unsigned max_batch = 512) {
  EngineOptions options;
  options.arithmetic = Arithmetic::f32;
  options.cache = CacheType::f32;
  options.threads = threads;
  options.kernels = kernels;
  options.max_batch = max_batch;
  return options;
}

}  // namespace engine_test
