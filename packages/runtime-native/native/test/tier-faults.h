// Whole models that are fetched while they run, from disks that delay, shorten and fail.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <thread>

#include "engine-model.h"
#include "io-check.h"

namespace tier_test {

using namespace cflow;
using namespace engine_test;

constexpr uint32_t kLayers = 3;

inline std::string name_of(Fetch fetch) {
  return fetch == Fetch::stall ? "stall" : fetch == Fetch::overlap ? "overlap" : "predict";
}

inline EngineOptions direct_options(unsigned threads, uint32_t expert_slots, uint32_t stream_slots, Fetch fetch) {
  // As many tokens as have slots for all that they may choose.
  const uint32_t batch = expert_slots >= kExperts ? 16 : std::max(1u, expert_slots / kTopK);
  EngineOptions options = options_with(threads, find_kernels(""), batch);
  options.weights = WeightMode::direct;
  options.direct.expert_slots = expert_slots;
  options.direct.stream_slots = stream_slots;
  options.direct.read_ahead = fetch != Fetch::stall;
  options.direct.io.block = 8192;
  return options;
}

/// Programs of one file, by how it is fetched, and what they must give.
struct DirectModel {
  explicit DirectModel(size_t tokens) : resident(make_model(kLayers)), file(resident.bytes), ids(prompt(tokens)) {
    for (const Fetch fetch : {Fetch::stall, Fetch::overlap, Fetch::predict}) {
      Model model = make_model(kLayers, fetch);
      check(model.bytes == resident.bytes, "one file, however it is fetched");
      programs.push_back(std::move(model.program));
    }
    auto options = options_with(1, find_kernels(""));
    options.weights = WeightMode::resident;
    auto engine = Engine::open(file.fd(), resident.bytes.size(), resident.program, options);
    expected = run(*engine, engine->create_session(), ids).logits;
  }
  std::shared_ptr<Engine> open(Fetch fetch, const EngineOptions& options, int fd) const {
    return Engine::open(fd, resident.bytes.size(), programs[static_cast<size_t>(fetch) - 1], options);
  }
  std::shared_ptr<Engine> open(Fetch fetch, const EngineOptions& options) const {
    return open(fetch, options, file.fd());
  }

  Model resident;
  TemporaryFile file;
  std::vector<Program> programs;
  std::vector<int32_t> ids;
  std::vector<float> expected;
};

inline void test_arms(const DirectModel& model) {
  for (const Fetch fetch : {Fetch::stall, Fetch::overlap, Fetch::predict}) {
    for (const unsigned threads : {1u, 2u, 3u}) {
      for (const uint32_t experts : {2u, 3u, 7u, 99u}) {
        for (const uint32_t streams : {2u, 3u, 99u}) {
          const std::string name = name_of(fetch) + ", " + std::to_string(threads) + " threads, " +
                                   std::to_string(experts) + " and " + std::to_string(streams) + " slots: ";
          auto engine = model.open(fetch, direct_options(threads, experts, streams, fetch));
          const Result result = run(*engine, engine->create_session(), model.ids);
          check(result.code.empty(), name + result.code + " " + result.message);
          check(result.logits == model.expected, name + "another result than in memory");
          check(run(*engine, engine->create_session(), model.ids).logits == model.expected, name + "a second session");
          const TierStats stats = engine->stats().tiers;
          check(stats.experts.hits + stats.experts.predicted + stats.experts.misses > 0, name + "experts were called");
          check((stats.experts.ahead > 0) == (fetch == Fetch::predict), name + "experts are predicted in one arm");
          const bool once = experts == 99 && fetch != Fetch::predict;
          check(!once || stats.experts.misses <= kLayers * kExperts, name + "what fits is read once");
        }
      }
    }
  }
}

/// One run: an engine with random options on a disk with random faults; jobs, some broken off, until one is right.
class FaultyRun {
 public:
  FaultyRun(const DirectModel& model, uint64_t seed) : model_(model), random_{seed} {
    fetch_ = static_cast<Fetch>(1 + random_.below(3));
    constexpr uint32_t kExpertSlots[] = {2, 3, 5, 8, 15};
    options_ = direct_options(1 + static_cast<unsigned>(random_.below(3)), kExpertSlots[random_.below(5)],
                              static_cast<uint32_t>(2 + random_.below(6)), fetch_);
    IoOptions& io = options_.direct.io;
    io.backend = random_.below(2) ? IoBackend::uring : IoBackend::threads;
    io.mode = random_.below(4) ? IoMode::automatic : IoMode::buffered;
    io.block = 16384u << random_.below(4);
    io.depth = static_cast<unsigned>(1 + random_.below(6));
    const bool fails = random_.below(3) > 0;
    io.faults = {seed, 5, 100, fails ? 2u : 0u, random_.below(4) ? 0u : 5u};
    name_ = "run " + std::to_string(seed) + ", " + name_of(fetch_) + ": ";
  }

  void go() {
    std::shared_ptr<Engine> engine;
    for (int attempt = 0; !engine; attempt++) {
      check(attempt < 40, name_ + "opens at last");
      try {
        engine = model_.open(fetch_, options_);
      } catch (const Error& error) {
        judge(error.code(), false);
        options_.direct.io.faults.seed += 1'000'003;
      }
    }
    if (random_.below(4) == 0) return close_early(std::move(engine));
    bool right = false;
    for (int attempt = 0; !right; attempt++) {
      check(attempt < 100, name_ + "is right at last");
      const bool cancels = random_.below(4) == 0;
      auto session = engine->create_session();
      std::thread canceller;
      if (cancels) {
        canceller = std::thread([session, pause = random_.below(3000)] {
          std::this_thread::sleep_for(std::chrono::microseconds(pause));
          session->cancel();
        });
      }
      const Result result = run(*engine, session, model_.ids);
      if (canceller.joinable()) canceller.join();
      judge(result.code, cancels);
      right = result.code.empty();
      if (right) check(result.logits == model_.expected, name_ + "right output, or an error");
    }
  }

  long failures = 0;

 private:
  void judge(const std::string& code, bool cancels) {
    failures += code == "NOT_READABLE";
    check(code.empty() || code == "NOT_READABLE" || (cancels && code == "INTERRUPTED"), name_ + "a typed error: " + code);
  }

  /// With a job that runs and one that waits.
  void close_early(std::shared_ptr<Engine> engine) {
    std::vector<float> logits[2];
    std::atomic<int> heard{0};
    for (auto& out : logits) {
      out.resize(kVocab);
      Job job;
      job.runs.push_back({engine->create_session(), model_.ids, out.data(), Logits::last, {}, 0});
      job.done = [&](const std::vector<Run>& runs) {
        if (runs[0].error) judge(runs[0].error->code(), true);
        else check(out == model_.expected, name_ + "a job that ended before the engine was closed");
        heard++;
      };
      engine->submit(std::move(job));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random_.below(3000)));
    engine.reset();
    check(heard == 2, name_ + "closing answers all jobs");
  }

  const DirectModel& model_;
  io_test::Random random_;
  Fetch fetch_;
  EngineOptions options_;
  std::string name_;
};

/// The file changes under the reader.
inline void test_changes(const DirectModel& model) {
  for (const Fetch fetch : {Fetch::stall, Fetch::overlap, Fetch::predict}) {
    const std::string name = name_of(fetch) + ": ";
    const auto opened = [&](const TemporaryFile& file) {
      // Other than the file's, whatever the clock that they are taken from.
      const timespec times[2] = {{1, 0}, {1, 0}};
      check(futimens(file.fd(), times) == 0, "times");
      return model.open(fetch, direct_options(2, 4, 3, fetch), file.fd());
    };
    const TemporaryFile shorter(model.resident.bytes);
    auto engine = opened(shorter);
    check(run(*engine, engine->create_session(), model.ids).logits == model.expected, name + "a whole file");
    check(ftruncate(shorter.fd(), 4096) == 0, "truncation");
    for (int i = 0; i < 3; i++) {
      check(run(*engine, engine->create_session(), model.ids).code == "NOT_READABLE", name + "a truncated file");
    }
    const TemporaryFile tail(model.resident.bytes);
    engine = opened(tail);
    check(ftruncate(tail.fd(), static_cast<off_t>(model.resident.bytes.size() - 100)) == 0, "truncation");
    check(run(*engine, engine->create_session(), model.ids).code == "NOT_READABLE", name + "the last bytes are gone");
    for (const size_t left : {size_t{4096}, model.resident.bytes.size() - 100}) {
      const TemporaryFile cut(model.resident.bytes);
      check(ftruncate(cut.fd(), static_cast<off_t>(left)) == 0, "truncation");
      std::string problem;
      try {
        model.open(fetch, direct_options(2, 4, 3, fetch), cut.fd());
      } catch (const Error& error) {
        problem = error.code() + std::string(": ") + error.what();
      }
      check(problem == "NOT_READABLE: the file has become shorter", name + "cut before it was opened: " + problem);
    }
    const TemporaryFile other(model.resident.bytes);
    engine = opened(other);
    check(run(*engine, engine->create_session(), model.ids).code.empty(), name + "a whole file");
    const uint8_t byte = static_cast<uint8_t>(~model.resident.bytes[9000]);
    check(pwrite(other.fd(), &byte, 1, 9000) == 1, "overwriting");
    for (int i = 0; i < 2; i++) {
      check(run(*engine, engine->create_session(), model.ids).code == "NOT_READABLE", name + "an overwritten file");
    }
  }
}

inline void test_models(int runs) {
  const DirectModel model(6);
  test_arms(model);
  test_changes(model);
  long failures = 0;
  for (int i = 0; i < runs; i++) {
    FaultyRun run(model, static_cast<uint64_t>(i));
    run.go();
    failures += run.failures;
  }
  check(runs < 100 || failures > runs / 10, "some runs meet errors: " + std::to_string(failures));
  std::printf("tier-test: %d runs with faults, %ld errors\n", runs, failures);
}

}  // namespace tier_test
