// Keys and values beyond their memory: whatever goes to disk and comes back, and whatever goes wrong there, the output
// is that of a session with memory for all, bit by bit, or a typed error after which it goes on. Exits 1 at the first
// failure.
#include <sys/resource.h>

#include <csignal>
#include <thread>

#include "engine-model.h"
#include "io-check.h"
#include "spill-model.h"

using namespace engine_test;

namespace {

const Model& model() {
  static const Model made = make_layers();
  return made;
}

std::shared_ptr<Engine> open(const EngineOptions& options) {
  static const TemporaryFile file(model().bytes);
  return Engine::open(file.fd(), model().bytes.size(), model().program, options);
}

std::string folder() {
  const char* name = std::getenv("TMPDIR");
  return name ? name : "/tmp";
}

EngineOptions options_for(uint64_t cache_bytes, CacheType cache = CacheType::f32, unsigned threads = 2) {
  EngineOptions options = options_with(threads, find_kernels(""));
  options.cache = cache;
  options.spill.cache_bytes = cache_bytes;
  options.spill.directory = folder();
  options.spill.io.block = 65536;
  return options;
}

/// Parts of a sequence, and what a session gives of each.
std::vector<std::vector<int32_t>> parts(size_t prefill, size_t decoded) {
  const std::vector<int32_t> ids = prompt(prefill + decoded);
  std::vector<std::vector<int32_t>> all;
  if (prefill) all.emplace_back(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(prefill));
  for (size_t i = prefill; i < ids.size(); i++) all.push_back({ids[i]});
  return all;
}

struct Sequence {
  std::vector<std::vector<float>> logits;
  uint64_t most_bytes = 0;
};

Sequence expect(Engine& engine, const std::vector<std::vector<int32_t>>& pieces) {
  Sequence sequence;
  const auto session = engine.create_session();
  for (const auto& piece : pieces) {
    Result result = run(engine, session, piece);
    check(result.code.empty(), "a sequence: " + result.code + " " + result.message);
    sequence.logits.push_back(std::move(result.logits));
    sequence.most_bytes = std::max(sequence.most_bytes, session->cache_bytes());
  }
  return sequence;
}

/// A page of a cache on disk: aligned.
uint64_t page_bytes(CacheType cache) {
  const uint64_t values = kPositions * kKvHeads * kHeadDim * 2;
  return (values * (cache == CacheType::f16 ? 2 : 4) + 4095) / 4096 * 4096;
}

void test_identity() {
  for (const CacheType cache : {CacheType::f32, CacheType::f16}) {
    for (const auto& [prefill, decoded, batch] : {std::tuple{0, 700, 1u}, {900, 300, 512u}, {1100, 100, 64u}}) {
      const auto pieces = parts(static_cast<size_t>(prefill), static_cast<size_t>(decoded));
      EngineOptions options = options_for(0, cache);
      options.max_batch = batch;
      const Sequence all = expect(*open(options), pieces);
      for (const unsigned threads : {1u, 3u}) {
        // Pages of 6 full caches, two areas among them, and whatever the windows take.
        const uint64_t windows = all.most_bytes / 4;
        options.spill.cache_bytes = windows + all.most_bytes / 2;
        options.threads = threads;
        const auto engine = open(options);
        const Sequence half = expect(*engine, pieces);
        const std::string lengths = std::to_string(prefill) + " + " + std::to_string(decoded);
        const std::string what = std::string(cache == CacheType::f16 ? "f16, " : "f32, ") + lengths + ", " +
                                 std::to_string(threads) + " threads: ";
        check(half.logits == all.logits, what + "the same output");
        check(half.most_bytes <= options.spill.cache_bytes, what + std::to_string(half.most_bytes) + " bytes are held");
        const SpillStats stats = engine->stats().tiers.spill;
        const uint64_t pages = 6 * page_bytes(cache);
        check(stats.bytes_written >= pages, what + "pages were written");
        check(stats.bytes_written % page_bytes(cache) == 0, what + "whole pages were written");
        check(stats.bytes_written <= pages * static_cast<uint64_t>(prefill + decoded) / kPositions,
              what + "each page is written once");
        check(stats.bytes_read > stats.bytes_written || batch > 1, what + "pages are read again for every token");
        check(stats.bytes_read >= pages, what + "pages were read");
      }
    }
  }
}

void test_fitting() {
  const auto pieces = parts(200, 20);
  const Sequence all = expect(*open(options_for(0)), pieces);
  const auto engine = open(options_for(2 * all.most_bytes));
  check(expect(*engine, pieces).logits == all.logits, "memory for all");
  check(engine->stats().tiers.spill.bytes_written == 0, "nothing is written that fits");
}

void test_backends() {
  const auto pieces = parts(600, 60);
  const Sequence all = expect(*open(options_for(0)), pieces);
  for (const IoBackend backend : {IoBackend::uring, IoBackend::threads}) {
    for (const IoMode mode : {IoMode::automatic, IoMode::buffered}) {
      EngineOptions options = options_for(all.most_bytes * 3 / 4);
      options.spill.io.backend = backend;
      options.spill.io.mode = mode;
      const auto engine = open(options);
      check(expect(*engine, pieces).logits == all.logits, "every way to read and write");
      const std::string reason = engine->stats().tiers.spill.reason;
      const bool direct = mode == IoMode::automatic && io_test::can_read_directly(io_test::File(8192).fd);
      check((reason.find("direct I/O") == std::string::npos) == direct, "directly where that can be: " + reason);
      const bool ring = backend == IoBackend::uring && io_test::has_ring();
      check((reason.find("io_uring") == std::string::npos) == ring, "by a ring where there is one: " + reason);
    }
  }
}

/// Batches become shorter where a long one does not fit; logits differ then as between batches.
void test_short_batches() {
  const auto pieces = parts(1000, 3);
  const Sequence all = expect(*open(options_for(0)), pieces);
  EngineOptions options = options_for(0);
  // The least at 1,003 positions: one page of six caches, 15 of two areas; windows hold (70 + 512 + 62) / 64 + 1 pages.
  const uint64_t windows = 2 * 11 * kPositions * kKvHeads * kHeadDim * 2 * 4;
  options.spill.cache_bytes = windows + (6 + 2 * 15) * page_bytes(CacheType::f32);
  const Sequence least = expect(*open(options), pieces);
  check(least.most_bytes <= options.spill.cache_bytes, "the least memory is kept to");
  for (size_t i = 0; i < pieces.size(); i++) {
    for (size_t j = 0; j < kVocab; j++) {
      check(std::fabs(least.logits[i][j] - all.logits[i][j]) < 1e-3f, "the output with the least memory");
    }
  }
  options.spill.cache_bytes -= 1;
  const auto engine = open(options);
  const auto session = engine->create_session();
  const Result refused = run(*engine, session, pieces[0]);
  check(refused.code == "MEMORY", "less than the least: " + refused.code);
  const std::string named = std::to_string(options.spill.cache_bytes + 1);
  // It is named at the position that no longer fits.
  check(refused.message.find("need " + named) != std::string::npos, "the least is named: " + refused.message);
}

void test_interleaved() {
  const auto pieces = parts(500, 100);
  const Sequence all = expect(*open(options_for(0)), pieces);
  const auto engine = open(options_for(all.most_bytes * 3 / 4));
  const auto first = engine->create_session();
  const auto second = engine->create_session();
  for (size_t i = 0; i < pieces.size(); i++) {
    check(run(*engine, first, pieces[i]).logits == all.logits[i], "the first of two sessions");
    if (i % 3) check(run(*engine, engine->create_session(), {1, 2}).code.empty(), "a short one");
    check(run(*engine, second, pieces[i]).logits == all.logits[i], "the second of two sessions");
  }
}

/// Whatever the disk does, a piece gives the right output or a typed error, and can be tried again.
void test_faults(int runs) {
  // Pieces of one batch: one that failed has left nothing behind.
  std::vector<std::vector<int32_t>> pieces(9, prompt(50));
  for (const auto& token : parts(0, 60)) pieces.push_back(token);
  const Sequence all = expect(*open(options_for(0)), pieces);
  int failures = 0;
  for (int seed = 0; seed < runs; seed++) {
    EngineOptions options = options_for(all.most_bytes * 3 / 4, CacheType::f32, seed % 2 ? 1 : 3);
    options.spill.io.backend = seed % 4 < 2 ? IoBackend::automatic : IoBackend::threads;
    options.spill.io.faults = {static_cast<uint64_t>(seed), 5, 100, seed % 3 ? 4u : 0u, seed % 5 ? 0u : 50u};
    const auto engine = open(options);
    const auto session = engine->create_session();
    for (size_t i = 0; i < pieces.size(); i++) {
      Result result = run(*engine, session, pieces[i]);
      for (int again = 0; !result.code.empty() && again < 50; again++) {
        check(result.code == "NOT_READABLE" || result.code == "WRITE_FAILED", "a typed error: " + result.code);
        failures++;
        result = run(*engine, session, pieces[i]);
      }
      check(result.logits == all.logits[i], "the right output in spite of faults, run " + std::to_string(seed));
    }
  }
  check(failures > runs / 4, "some reads and writes fail: " + std::to_string(failures));
}

void test_abort() {
  const auto pieces = parts(500, 40);
  const Sequence all = expect(*open(options_for(0)), pieces);
  EngineOptions options = options_for(all.most_bytes * 3 / 4);
  options.spill.io.faults.delay = 100;
  auto engine = open(options);
  auto session = engine->create_session();
  check(run(*engine, session, pieces[0]).code.empty(), "a prompt");
  int aborted = 0;
  for (size_t i = 1; i < pieces.size(); i++) {
    Result result;
    {
      std::jthread other([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(300 * (i % 7)));
        session->cancel();
      });
      result = run(*engine, session, pieces[i]);
    }
    session->resume();
    if (!result.code.empty()) {
      check(result.code == "INTERRUPTED", "an abort while pages are read: " + result.code);
      aborted++;
      result = run(*engine, session, pieces[i]);
    }
    check(result.logits == all.logits[i], "the token after an abort");
  }
  check(aborted > 0, "some tokens are aborted");
  // A session that ends while its next token is being fetched, then an engine with a job under way.
  session.reset();
  session = engine->create_session();
  check(run(*engine, session, pieces[0]).code.empty(), "another session");
  std::vector<float> logits(kVocab);
  std::atomic<bool> heard{false};
  Job job;
  job.runs.push_back({session, pieces[1], logits.data(), Logits::last, {}, 0});
  job.done = [&](const std::vector<Run>&) { heard = true; };
  engine->submit(std::move(job));
  engine.reset();
  check(heard, "closing answers the job");
}

/// Back and forth, with reads and writes that take their time and some that fail.
void test_truncate() {
  const auto ids = prompt(700);
  const auto part = [&](uint64_t from, uint64_t to) {
    return std::vector<int32_t>(ids.begin() + static_cast<ptrdiff_t>(from), ids.begin() + static_cast<ptrdiff_t>(to));
  };
  const auto whole = open(options_for(0));
  const auto session_of_all = whole->create_session();
  check(run(*whole, session_of_all, ids).code.empty(), "all in memory");
  const uint64_t all_bytes = session_of_all->cache_bytes();
  const Result expected = run(*whole, whole->create_session(), ids, true);
  int shorter = 0;
  for (int seed = 0; seed < 6; seed++) {
    EngineOptions options = options_for(all_bytes * 3 / 4);
    options.spill.io.faults = {static_cast<uint64_t>(seed), 5, 100, seed % 3 ? 4u : 0u, 0u};
    const auto engine = open(options);
    const auto session = engine->create_session();
    uint64_t position = 0;
    for (int step = 0; step < 25; step++) {
      const uint64_t to = std::min<uint64_t>(ids.size(), position + 1 + (step * 97 + seed * 31) % 400);
      while (position < to) {
        // A batch at a time: one that fails has left nothing behind.
        const uint64_t end = std::min<uint64_t>(to, position + 100);
        const Result result = run(*engine, session, part(position, end));
        if (!result.code.empty()) continue;
        position = end;
        check(std::equal(result.logits.begin(), result.logits.end(), expected.logits.begin() + static_cast<ptrdiff_t>((end - 1) * kVocab)),
              "the output behind a cut, run " + std::to_string(seed));
      }
      const uint64_t asked = position - std::min<uint64_t>(position, (step * 53 + seed * 17) % (step % 4 ? 60 : 700));
      const uint64_t reached = session->truncate(asked);
      check(reached <= asked && (reached == 0 || asked - reached < kPositions), "a position, or the beginning of its page");
      shorter += reached != asked && reached != 0;
      position = reached;
    }
  }
  check(shorter > 0, "some pages are on disk");
}

void test_no_directory() {
  const auto pieces = parts(500, 10);
  const Sequence all = expect(*open(options_for(0)), pieces);
  EngineOptions options = options_for(all.most_bytes * 3 / 4);
  options.max_batch = 64;
  options.spill.directory = "/no/such/directory";
  const auto engine = open(options);
  const Result result = run(*engine, engine->create_session(), pieces[0]);
  check(result.code == "WRITE_FAILED", "no directory: " + result.code);
  check(result.message.find("/no/such/directory") != std::string::npos, "it is named: " + result.message);
  check(run(*engine, engine->create_session(), {1, 2, 3}).code.empty(), "short sequences need none");
}

/// A disk that is full, as far as a process can cause it: no file may grow.
void test_full_disk() {
  const auto pieces = parts(400, 200);
  const Sequence all = expect(*open(options_for(0)), pieces);
  const auto engine = open(options_for(all.most_bytes * 3 / 4));
  const auto session = engine->create_session();
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  int failures = 0;
  for (size_t i = 0; i < pieces.size(); i++) {
    const bool full = i > 20 && i < 150;
    const rlimit none{0, before.rlim_max};
    if (full) setrlimit(RLIMIT_FSIZE, &none);
    Result result = run(*engine, session, pieces[i]);
    if (full) setrlimit(RLIMIT_FSIZE, &before);
    if (!result.code.empty()) {
      // What failed in the background is written again before anybody hears of it: there is room at other times.
      check(full && result.code == "WRITE_FAILED", "a full disk: " + result.code);
      failures++;
      result = run(*engine, session, pieces[i]);
    }
    check(result.logits == all.logits[i], "the same output once there is room");
  }
  check(failures > 0, "a full disk is noticed");
}

}  // namespace

int main(int count, char** values) {
  test_fitting();
  test_identity();
  test_backends();
  test_short_batches();
  test_interleaved();
  test_faults(count > 1 ? std::atoi(values[1]) : 20);
  test_abort();
  test_truncate();
  test_no_directory();
  test_full_disk();
  std::printf("spill-test: %ld checks\n", checks.load());
  return 0;
}
