// The engine without Node: a small model of every kind of step, made here; for the sanitizers, and for faults that are
// hard to cause from outside. Prints what it checked; exits 1 at the first failure.
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "engine-model.h"

using namespace engine_test;

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
    job.runs.push_back({engine->create_session(), prompt(250), out.data(), Logits::last, {}, 0});
    job.done = [&](const std::vector<Run>&) { heard++; };
    engine->submit(std::move(job));
  }
  engine.reset();
  check(heard == 8, "closing answers all jobs");
}

/// A sequence that goes back and forth gives what one gives that never did; the ring has few pages, so that it loses some.
void test_truncate(const Model& model, const TemporaryFile& file) {
  const std::vector<int32_t> ids = prompt(kContext);
  int lost = 0;
  for (const unsigned batch : {1u, 7u, 512u}) {
    auto engine = Engine::open(file.fd(), model.bytes.size(), model.program, options_with(2, find_kernels(""), batch));
    const std::vector<float> expected = run(*engine, engine->create_session(), ids, true).logits;
    auto session = engine->create_session();
    check(session->truncate(0) == 0, "an empty session");
    uint64_t position = 0;
    Random random;
    const auto below = [&](uint64_t n) { return static_cast<uint64_t>((random.next() + 1) / 2 * static_cast<float>(n)); };
    for (int step = 0; step < 60; step++) {
      const uint64_t count = std::min<uint64_t>(1 + below(90), kContext - position);
      if (count) {
        const auto first = ids.begin() + static_cast<ptrdiff_t>(position);
        const Result result = run(*engine, session, {first, first + static_cast<ptrdiff_t>(count)});
        check(result.code.empty(), "what follows a cut: " + result.code);
        position += count;
        check(std::equal(result.logits.begin(), result.logits.end(), expected.begin() + static_cast<ptrdiff_t>((position - 1) * kVocab)),
              "the logits behind a cut");
      }
      const uint64_t before = session->cache_bytes();
      // Near the end as well, as far as rings reach.
      const uint64_t to = step % 2 ? below(position + 1) : position - std::min(position, below(9));
      const uint64_t reached = session->truncate(to);
      check(reached == to || reached == 0, "a position that was asked for, or the beginning");
      check(session->cache_bytes() <= before && (reached || session->cache_bytes() == 0), "pages are given back");
      lost += reached != to;
      position = reached;
    }
    try {
      session->truncate(position + 1);
      check(false, "a position that has not passed");
    } catch (const Error& error) {
      check(std::string(error.code()) == "USAGE", "a position that has not passed");
    }
    session->cancel();
    check(run(*engine, session, {1}).code == "INTERRUPTED", "a session that is cancelled");
    check(session->truncate(position) == position && run(*engine, session, {1}).code.empty(), "and usable again");
  }
  check(lost > 0, "rings lose positions");
}

/// Two phases that read 6 and 24 MB.
Model make_wide() {
  enum : BufferId { x, hidden, logits };
  constexpr uint32_t kWide = 20'000;
  FileMaker file;
  Program p;
  p.dtype = Dtype::f32;
  p.buffers = {kDim, kWide, kVocab};
  p.steps.push_back(step::Embed{file.matrix(kVocab, kDim), 1.0f, x});
  p.steps.push_back(step::Matvec{x, {{hidden, file.matrix(kWide, kDim), -1}}});
  p.steps.push_back(step::Matvec{hidden, {{logits, file.matrix(kVocab, kWide), -1}}});
  p.phases = {{{}, {0}, {}}, {{1}, {}, {}}, {{2}, {}, {}}};
  p.head_phase = 2;
  p.output = logits;
  p.vocab_size = kVocab;
  p.context_length = kContext;
  return {std::move(p), std::move(file.bytes)};
}

/// Of a token behind a prompt: phases that threads shared, of how many, and the logits.
struct Shared {
  uint64_t phases;
  uint64_t all;
  std::vector<float> logits;
};

Shared share(const Model& model, bool share_short, size_t tokens) {
  const TemporaryFile file(model.bytes);
  EngineOptions options = options_with(2, find_kernels(""));
  options.share_short = share_short;
  auto engine = Engine::open(file.fd(), model.bytes.size(), model.program, options);
  auto session = engine->create_session();
  const std::string code = run(*engine, session, prompt(tokens)).code;
  check(code.empty(), "a prompt: " + code);
  std::vector<float> logits = run(*engine, session, {1}).logits;
  const EngineStats stats = engine->stats();
  return {stats.shared_phases, stats.barriers_per_token, std::move(logits)};
}

/// Unless they are asked for, threads share only phases that are long enough, and the result is the same.
void test_short_phases(const Model& model) {
  const Shared all = share(model, true, 40), none = share(model, false, 40);
  check(all.phases == all.all, "every phase is shared if threads are asked for");
  check(none.phases == 0, "phases of a small model are too short to share");
  check(all.logits == none.logits, "the same logits, shared or not");
  const Model wide = make_wide();
  const Shared both = share(wide, false, 2);
  check(both.phases == both.all, "phases of a large model are shared");
  check(both.logits == share(wide, true, 2).logits, "the same logits, whatever is shared");
}

/// Sessions in company and forks of them: each gives what a session alone gives, to the bit.
void test_batches(const Model& model, const TemporaryFile& file) {
  for (const unsigned batch : {1u, 7u, 64u}) {
    auto engine = Engine::open(file.fd(), model.bytes.size(), model.program, options_with(3, find_kernels(""), batch));
    const std::vector<float> expected = run(*engine, engine->create_session(), prompt(kContext), true).logits;
    std::vector<std::shared_ptr<Session>> sessions(6);
    std::vector<uint64_t> positions(sessions.size());
    for (auto& session : sessions) session = engine->create_session();
    Random random;
    const auto below = [&](uint64_t n) { return static_cast<uint64_t>((random.next() + 1) / 2 * static_cast<float>(n)); };
    for (int step = 0; step < 40; step++) {
      std::vector<Part> parts;
      std::vector<size_t> members;
      for (size_t i = 0; i < sessions.size(); i++) {
        const uint64_t count = std::min<uint64_t>(below(3) ? 1 : below(20), kContext - positions[i]);
        if (count == 0) continue;
        const auto ids = prompt(kContext);
        const auto first = ids.begin() + static_cast<ptrdiff_t>(positions[i]);
        const auto logits = static_cast<Logits>(below(3));
        parts.push_back({sessions[i], {first, first + static_cast<ptrdiff_t>(count)}, logits});
        members.push_back(i);
      }
      // One is cancelled, now and then; it goes back to where it was.
      const size_t victim = step % 5 == 0 && !parts.empty() ? below(parts.size()) : SIZE_MAX;
      if (victim != SIZE_MAX) parts[victim].session->cancel();
      const auto results = run_batch(*engine, parts);
      for (size_t m = 0; m < parts.size(); m++) {
        uint64_t& position = positions[members[m]];
        if (m == victim) {
          check(results[m].code == "INTERRUPTED", "a cancelled session among others: " + results[m].code);
          position = parts[m].session->truncate(position);
          continue;
        }
        check(results[m].code.empty(), "a batch: " + results[m].code);
        position += parts[m].ids.size();
        const size_t rows = results[m].logits.size() / kVocab;
        const auto from = expected.begin() + static_cast<ptrdiff_t>((position - rows) * kVocab);
        check(std::equal(results[m].logits.begin(), results[m].logits.end(), from), "logits in company");
      }
      const size_t to = below(sessions.size());
      const size_t from = below(sessions.size());
      if (step % 3 == 0 && to != from) {
        sessions[to] = engine->fork(*sessions[from]);
        positions[to] = positions[from];
      }
      if (step % 4 == 0) positions[from] = sessions[from]->truncate(positions[from] - std::min<uint64_t>(positions[from], below(12)));
    }
  }
}

/// One session of a batch meets NaN.
void test_nan_in_company(const Model& model) {
  Model broken = model;
  const auto& embed = std::get<step::Embed>(broken.program.steps[0]);
  // The first column of token 5, in tiles of f32.
  const float nan = std::nanf("");
  std::memcpy(broken.bytes.data() + embed.matrix.stripes[0] + kTileHeaderBytes + 5 * 4 * kDim, &nan, 4);
  const TemporaryFile file(broken.bytes);
  auto engine = Engine::open(file.fd(), broken.bytes.size(), broken.program, options_with(2, find_kernels("")));
  const auto sick = engine->create_session();
  const std::vector<int32_t> healthy{1, 2, 3, 4};
  const auto results = run_batch(*engine, {{sick, {1, 2, 5, 6}}, {engine->create_session(), healthy}, {engine->create_session(), {7}}});
  check(results[0].code == "NONFINITE_WEIGHT", "NaN in a session of a batch: " + results[0].message);
  check(results[1].code.empty() && results[1].logits == run(*engine, engine->create_session(), healthy).logits, "its neighbour");
  check(results[2].code.empty() && results[2].logits == run(*engine, engine->create_session(), {7}).logits, "a token beside it");
  check(sick->truncate(0) == 0 && run(*engine, sick, healthy).logits == results[1].logits, "it can begin again");
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
  test_truncate(model, file);
  test_short_phases(model);
  test_batches(model, file);
  test_nan_in_company(model);
  std::printf("engine-test: %ld checks\n", checks.load());
  return 0;
}
