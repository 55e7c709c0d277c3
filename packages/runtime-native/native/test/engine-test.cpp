// The engine without Node: a small model of every kind of step, made here; for the sanitizers, and for faults that are
// hard to cause from outside. Prints what it checked; exits 1 at the first failure.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "../engine/engine.h"

using namespace cflow;

/// Allocations of so many bytes and more fail.
static std::atomic<size_t> refused_bytes{SIZE_MAX};

void* operator new(size_t bytes) {
  void* at = bytes < refused_bytes ? std::malloc(bytes) : nullptr;
  if (!at) throw std::bad_alloc();
  return at;
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, size_t) noexcept { std::free(at); }

namespace {

int checks = 0;

void check(bool holds, const std::string& what) {
  checks++;
  if (holds) return;
  std::fprintf(stderr, "engine-test: FAILED: %s\n", what.c_str());
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

/// One layer with windowed attention, a gated FFN and routed experts on a residual.
Model make_model() {
  enum : BufferId { x, normed, q, k, v, heads, attn, hidden, ffn, router, routing, expert_hidden, experts, logits };
  FileMaker file;
  Program p;
  p.dtype = Dtype::f32;
  p.buffers = {kDim, kDim, kHeads * kHeadDim, kKvHeads * kHeadDim, kKvHeads * kHeadDim, kHeads * kHeadDim, kDim,
               kFfn, kDim, kExperts, 2 * kTopK, kHidden, kDim, kVocab};
  p.caches = {{kKvHeads, kHeadDim, kWindow}};
  p.ropes = {{1.0, 0.5, 0.1, 0.01, 0.001, 0.0001}};
  auto add = [&](Step step) { p.steps.push_back(std::move(step)); };
  auto norm = [&] { return step::RmsNorm{x, file.vector(kDim), kDim, kDim, 1e-5f, normed}; };
  add(step::Embed{file.matrix(kVocab, kDim), 2.0f, x});                                                          // 0
  add(norm());                                                                                                   // 1
  add(step::Matvec{normed, {{q, file.matrix(kHeads * kHeadDim, kDim), -1},
                            {k, file.matrix(kKvHeads * kHeadDim, kDim), file.vector(kKvHeads * kHeadDim)},
                            {v, file.matrix(kKvHeads * kHeadDim, kDim), -1}}});                                  // 2
  add(step::GatedMatvec{normed, file.matrix(kFfn, kDim), file.matrix(kFfn, kDim), -1, file.vector(kFfn),
                        Activation::silu, hidden});                                                              // 3
  add(step::Rope{q, kHeadDim, 0});                                                                               // 4
  add(step::Rope{k, kHeadDim, 0});                                                                               // 5
  add(step::Append{0, k, v});                                                                                    // 6
  add(step::Attend{0, q, heads, kHeads, 0.3f, 20.0f, kWindow});                                                  // 7
  add(step::Matvec{hidden, {{ffn, file.matrix(kDim, kFfn), -1}}});                                               // 8
  add(step::Matvec{heads, {{attn, file.matrix(kDim, kHeads * kHeadDim), -1}}});                                  // 9
  add(step::Sum{{x, attn, ffn}, {1, 1, 0.7f}, x});                                                               // 10
  add(norm());                                                                                                   // 11
  const Offset router_weights = file.vector(kExperts * kDim);
  add(step::PlainMatvec{normed, router_weights, kExperts, kDim, router});                                        // 12
  add(step::Route{router, kTopK, true, routing});                                                                // 13
  TiledMatrix gate, up, down;
  std::vector<uint64_t> bases;
  for (uint32_t e = 0; e < kExperts; e++) {
    bases.push_back(file.bytes.size());
    gate = file.matrix(kExpertDim, kDim, bases.back());
    up = file.matrix(kExpertDim, kDim, bases.back());
    down = file.matrix(kDim, kExpertDim, bases.back());
  }
  add(step::ExpertsUp{normed, routing, kTopK, kExpertDim, Activation::gelu, expert_hidden, bases, gate, up});    // 14
  add(step::ExpertsDown{expert_hidden, routing, kTopK, kExpertDim, experts, bases, down});                       // 15
  add(step::Sum{{x, experts}, {1, 1}, x});                                                                       // 16
  add(norm());                                                                                                   // 17
  add(step::Matvec{normed, {{logits, file.matrix(kVocab, kDim), -1}}});                                          // 18
  add(step::Softcap{logits, 30});                                                                                // 19
  p.stages = {{{}, {0, 1}}, {{2, 3}, {4, 5, 6}}, {{7, 8}, {}},   {{9}, {10, 11}},
              {{12}, {13}}, {{14}, {}},          {{15}, {16, 17}}, {{18}, {19}}};
  p.head_stage = 7;
  p.output = logits;
  p.vocab_size = kVocab;
  p.context_length = kContext;
  return {std::move(p), std::move(file.bytes)};
}

/// A file that is gone from its directory, and lives while its descriptor does.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::vector<uint8_t>& bytes) {
    char name[] = "/tmp/cflow-engine-test-XXXXXX";
    fd_ = mkstemp(name);
    check(fd_ >= 0, "a temporary file");
    unlink(name);
    check(write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "writing the model");
  }
  ~TemporaryFile() { close(fd_); }
  int fd() const { return fd_; }

 private:
  int fd_;
};

struct Result {
  std::string code;
  std::string message;
  std::vector<float> logits;
};

/// Submits and waits, as a caller does that has nothing else to do.
Result run(Engine& engine, const std::shared_ptr<Session>& session, std::vector<int32_t> ids, bool all = false) {
  Result result;
  result.logits.resize(kVocab * (all ? ids.size() : 1));
  std::mutex mutex;
  std::condition_variable ready;
  bool done = false;
  Job job;
  job.ids = std::move(ids);
  job.logits = result.logits.data();
  job.all_logits = all;
  job.done = [&](const Error* error) {
    const std::lock_guard lock(mutex);
    if (error) {
      result.code = error->code();
      result.message = error->what();
    }
    done = true;
    ready.notify_one();
  };
  engine.submit(session, std::move(job));
  std::unique_lock lock(mutex);
  ready.wait(lock, [&] { return done; });
  return result;
}

std::vector<int32_t> prompt(size_t n) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < n; i++) ids.push_back(static_cast<int32_t>((i * 37 + 11) % kVocab));
  return ids;
}

EngineOptions options_with(unsigned threads, const Kernels* kernels, unsigned max_batch = 512) {
  EngineOptions options;
  options.arithmetic = Arithmetic::f32;
  options.cache = CacheType::f32;
  options.threads = threads;
  options.kernels = kernels;
  options.max_batch = max_batch;
  return options;
}

float difference(const float* a, const float* b, size_t n) {
  float worst = 0, norm = 0;
  for (size_t i = 0; i < n; i++) {
    worst = std::max(worst, std::fabs(a[i] - b[i]));
    norm = std::max(norm, std::fabs(b[i]));
  }
  return worst / norm;
}

/// Token by token on scalar kernels: what everything else is compared with.
std::vector<float> reference(const Model& model, const TemporaryFile& file, size_t tokens) {
  auto engine = Engine::open(file.fd(), model.bytes.size(), model.program, options_with(1, find_kernels("scalar")));
  auto session = engine->create_session();
  std::vector<float> all;
  for (const int32_t id : prompt(tokens)) {
    const Result result = run(*engine, session, {id});
    check(result.code.empty(), "one token at a time: " + result.code);
    all.insert(all.end(), result.logits.begin(), result.logits.end());
  }
  return all;
}

void test_agreement(const Model& model, const TemporaryFile& file) {
  constexpr size_t kTokens = 200;
  const std::vector<float> expected = reference(model, file, kTokens);
  int count = 0;
  const Kernels* const* sets = available_kernels(&count);
  for (int i = 0; i < count; i++) {
    std::vector<float> first;
    for (const unsigned threads : {1u, 2u, 5u}) {
      for (const unsigned batch : {1u, 7u, 512u}) {
        auto engine = Engine::open(file.fd(), model.bytes.size(), model.program, options_with(threads, sets[i], batch));
        const Result result = run(*engine, engine->create_session(), prompt(kTokens), true);
        check(result.code.empty(), std::string(sets[i]->isa) + ": " + result.code);
        const float off = difference(result.logits.data(), expected.data(), expected.size());
        check(off < 1e-4f, std::string(sets[i]->isa) + ", batches of " + std::to_string(batch) + ": logits off by " +
                               std::to_string(off));
        if (batch != 512) continue;
        if (first.empty()) first = result.logits;
        check(result.logits == first, std::string(sets[i]->isa) + ": threads change the result");
      }
    }
    std::printf("engine-test: %s agrees, %zu tokens\n", sets[i]->isa, kTokens);
  }
}

void test_refusals(const Model& model, const TemporaryFile& file) {
  auto engine = Engine::open(file.fd(), model.bytes.size(), model.program, options_with(2, find_kernels("")));
  check(run(*engine, engine->create_session(), {0, static_cast<int32_t>(kVocab)}).code == "USAGE", "an id too large");
  check(run(*engine, engine->create_session(), {-1}).code == "USAGE", "a negative id");
  check(run(*engine, engine->create_session(), prompt(kContext + 1)).code == "LIMIT_EXCEEDED", "a full context");
  auto session = engine->create_session();
  session->cancel();
  check(run(*engine, session, prompt(9)).code == "INTERRUPTED", "a cancelled session");
  session = engine->create_session();
  check(run(*engine, session, prompt(9)).code.empty(), "a session");
  session->cancel();
  session->resume();
  check(run(*engine, session, prompt(3)).code.empty(), "a session that was cancelled too late, and resumed");
  Program outside = model.program;
  std::get<step::Embed>(outside.steps[0]).matrix.stripes[0] = model.bytes.size() - 8;
  try {
    Engine::open(file.fd(), model.bytes.size(), outside, options_with(1, find_kernels("")));
    check(false, "weights outside the file are refused");
  } catch (const Error& error) {
    check(std::string(error.code()) == "INTERNAL", "weights outside the file are refused as such");
  }
}

void test_truncation(const Model& model) {
  const TemporaryFile file(model.bytes);
  auto engine = Engine::open(file.fd(), model.bytes.size(), model.program, options_with(2, find_kernels("")));
  check(run(*engine, engine->create_session(), prompt(3)).code.empty(), "a whole file");
  check(ftruncate(file.fd(), 4096) == 0, "truncation");
  check(run(*engine, engine->create_session(), prompt(3)).code == "NOT_READABLE", "a truncated file fails the call");
  check(run(*engine, engine->create_session(), prompt(1)).code == "NOT_READABLE", "and the calls after it");
  // What is left of the last page reads as zeros, without a signal.
  const TemporaryFile tail(model.bytes);
  engine = Engine::open(tail.fd(), model.bytes.size(), model.program, options_with(2, find_kernels("")));
  check(ftruncate(tail.fd(), static_cast<off_t>(model.bytes.size() - 100)) == 0, "truncation within a page");
  check(run(*engine, engine->create_session(), prompt(3)).code == "NOT_READABLE", "a file without its last bytes");
}

void test_nan(const Model& model) {
  Model broken = model;
  const auto& router = std::get<step::PlainMatvec>(broken.program.steps[12]);
  for (uint32_t i = 0; i < kExperts * kDim; i++) {
    const float nan = std::nanf("");
    std::memcpy(broken.bytes.data() + router.weight + 4 * i, &nan, 4);
  }
  const TemporaryFile file(broken.bytes);
  auto engine = Engine::open(file.fd(), broken.bytes.size(), broken.program, options_with(2, find_kernels("")));
  const Result nan = run(*engine, engine->create_session(), prompt(20));
  check(nan.code == "NONFINITE_WEIGHT", "NaN in a router");
  check(nan.message.find("position 0") != std::string::npos, "the first position with NaN: " + nan.message);
}

/// In the middle of a step, on any thread: attention needs room for its scores.
void test_refused_memory(const Model& model, const TemporaryFile& file) {
  auto engine = Engine::open(file.fd(), model.bytes.size(), model.program, options_with(3, find_kernels("")));
  check(run(*engine, engine->create_session(), prompt(3)).code.empty(), "enough memory");
  refused_bytes = 6000;
  const std::string code = run(*engine, engine->create_session(), prompt(200)).code;
  refused_bytes = SIZE_MAX;
  check(code == "MEMORY", "refused memory is told: " + code);
  check(run(*engine, engine->create_session(), prompt(200)).code.empty(), "the engine lives on");
}

void test_f16_cache(const Model& model) {
  Model large = model;
  const auto& qkv = std::get<step::Matvec>(large.program.steps[2]);
  const float bias = 1e6f;
  std::memcpy(large.bytes.data() + qkv.outs[1].bias, &bias, sizeof bias);
  const TemporaryFile file(large.bytes);
  auto options = options_with(2, find_kernels(""));
  auto engine = Engine::open(file.fd(), large.bytes.size(), large.program, options);
  check(run(*engine, engine->create_session(), prompt(9)).code.empty(), "a large key in an f32 cache");
  options.cache = CacheType::f16;
  engine = Engine::open(file.fd(), large.bytes.size(), large.program, options);
  check(run(*engine, engine->create_session(), prompt(9)).code == "LIMIT_EXCEEDED", "a large key in an f16 cache");
}

void test_concurrency(const Model& model, const TemporaryFile& file) {
  auto options = options_with(3, find_kernels(""));
  options.weights = WeightMode::resident;
  options.profile = true;
  auto engine = Engine::open(file.fd(), model.bytes.size(), model.program, options);
  const Result expected = run(*engine, engine->create_session(), prompt(40));
  {
    std::vector<std::jthread> callers;
    for (int i = 0; i < 4; i++) {
      callers.emplace_back([&] {
        for (int repeat = 0; repeat < 5; repeat++) {
          check(run(*engine, engine->create_session(), prompt(40)).logits == expected.logits, "sessions side by side");
          engine->stats();
        }
      });
    }
  }
  // Closing with work queued: every job hears of it.
  std::atomic<int> heard{0};
  std::vector<std::vector<float>> logits(8, std::vector<float>(kVocab));
  for (auto& out : logits) {
    Job job;
    job.ids = prompt(250);
    job.logits = out.data();
    job.done = [&](const Error*) { heard++; };
    engine->submit(engine->create_session(), std::move(job));
  }
  engine.reset();
  check(heard == 8, "closing answers all jobs");
}

}  // namespace

int main() {
  const Model model = make_model();
  const TemporaryFile file(model.bytes);
  test_agreement(model, file);
  test_refusals(model, file);
  test_truncation(model);
  test_nan(model);
  test_f16_cache(model);
  test_refused_memory(model, file);
  test_concurrency(model, file);
  std::printf("engine-test: %d checks\n", checks);
  return 0;
}
