// Memory and threads that the system refuses, at every place: the engine answers with a typed error, leaks nothing, and
// goes on as if nothing had been. Prints what it checked; exits 1 at the first failure.
//
//     pressure-test [STEP]   refuse every STEP-th call (default 1: all of them)
#include "refusals.h"

#include <dirent.h>

#include <set>

#include "spill-model.h"

using namespace engine_test;

namespace {

/// Entries of a folder of /proc/self: descriptors, threads.
long entries(const char* folder) {
  long count = 0;
  if (DIR* directory = opendir(folder)) {
    while (readdir(directory)) count++;
    closedir(directory);
  }
  return count;
}

struct Configuration {
  const char* name;
  Model model;
  EngineOptions options;
  /// Tokens of the first job.
  size_t tokens;
};

/// What a caller is told without memory of its own.
struct Outcome {
  const char* code = nullptr;
  bool done = false;
  std::mutex mutex;
  std::condition_variable ready;
};

/// Null: it went well.
const char* attempt(Engine& engine, const std::shared_ptr<Session>& session, std::vector<int32_t> ids, float* logits) {
  Outcome outcome;
  Job job;
  with_typed_errors([&] { job.runs.push_back({session, std::move(ids), logits, Logits::last, {}, 0}); });
  job.done = [&outcome](const std::vector<Run>& runs) {
    const std::lock_guard lock(outcome.mutex);
    outcome.code = runs[0].error ? runs[0].error->code() : nullptr;
    outcome.done = true;
    outcome.ready.notify_one();
  };
  engine.submit(std::move(job));
  std::unique_lock lock(outcome.mutex);
  outcome.ready.wait(lock, [&] { return outcome.done; });
  return outcome.code;
}

class Sweep {
 public:
  explicit Sweep(Configuration configuration) : it_(std::move(configuration)), file_(it_.model.bytes) {
    const auto engine = open();
    const auto session = engine->create_session();
    check(attempt(*engine, session, prompt(it_.tokens), logits_.data()) == nullptr, std::string(it_.name) + ": a job");
    const bool spills = it_.options.spill.cache_bytes > 0;
    check(spills == (engine->stats().tiers.spill.bytes_written > 0), std::string(it_.name) + ": what spills");
    expected_ = logits_;
  }

  /// Refuses every step-th call. Returns how many there were.
  long run(long step, bool lasting) {
    for (long n = 0;; n += step) {
      if (!refuse(n, lasting)) {
        check(codes_.count("MEMORY") && codes_.size() <= 2, std::string(it_.name) + ": memory was refused somewhere");
        return n;
      }
    }
  }

 private:
  std::shared_ptr<Engine> open() {
    return Engine::open(file_.fd(), it_.model.bytes.size(), it_.model.program, it_.options);
  }

  void note(const char* code) {
    if (!code) return;
    const std::string name = code;
    check(name == "MEMORY" || name == "LIMIT_EXCEEDED", std::string(it_.name) + ": refused memory is told as " + name);
    codes_.insert(name);
  }

  /// Opens and runs while call `n` is refused, then without refusals. False: there was no such call.
  bool refuse(long n, bool lasting) {
    Program program = it_.model.program;
    auto ids = prompt(it_.tokens);
    std::vector<int32_t> next{1};
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Session> session;
    const char* code = nullptr;
    const char* second = nullptr;
    const long before = refusals::calls;
    refusals::arm(n, lasting);
    try {
      engine = Engine::open(file_.fd(), it_.model.bytes.size(), std::move(program), it_.options);
      session = engine->create_session();
      code = attempt(*engine, session, std::move(ids), logits_.data());
      // A smaller batch after one that was refused.
      second = attempt(*engine, session, std::move(next), logits_.data());
      engine->stats();
      engine->take_routings();
    } catch (const Error& error) {
      code = error.code();
    }
    const bool reached = refusals::calls - before > n;
    refusals::disarm();
    note(code);
    note(second);
    if (!engine) return reached;
    if (session) note(attempt(*engine, session, {2}, logits_.data()));
    check(attempt(*engine, engine->create_session(), prompt(it_.tokens), logits_.data()) == nullptr,
          std::string(it_.name) + ": the engine goes on after refusal " + std::to_string(n));
    check(logits_ == expected_, std::string(it_.name) + ": the same logits after refusal " + std::to_string(n));
    return reached;
  }

  const Configuration it_;
  const TemporaryFile file_;
  std::vector<float> logits_ = std::vector<float>(kVocab);
  std::vector<float> expected_;
  std::set<std::string> codes_;
};

std::vector<Configuration> configurations() {
  std::vector<Configuration> all;
  EngineOptions mapped = options_with(3, find_kernels(""));
  mapped.profile = true;
  all.push_back({"mapped", make_model(), mapped, 40});
  EngineOptions resident = options_with(2, find_kernels(""), 16);
  resident.weights = WeightMode::resident;
  resident.record_routings = true;
  all.push_back({"resident", make_model(), resident, 40});
  EngineOptions direct = options_with(2, find_kernels(""), 2);
  direct.weights = WeightMode::direct;
  direct.direct.expert_slots = kExperts;
  direct.direct.stream_slots = 2;
  direct.direct.io.backend = IoBackend::threads;
  direct.direct.io.block = 8192;
  all.push_back({"direct", make_model(2, Fetch::predict), direct, 4});
  EngineOptions spilling = options_with(2, find_kernels(""), 32);
  spilling.spill.cache_bytes = 400'000;
  const char* folder = std::getenv("TMPDIR");
  spilling.spill.directory = folder ? folder : "/tmp";
  spilling.spill.io.block = 65536;
  all.push_back({"spilling", make_layers(), spilling, 200});
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  refusals::disarm();
  const long step = argc > 1 ? std::atol(argv[1]) : 1;
  for (Configuration& configuration : configurations()) {
    const char* name = configuration.name;
    Sweep sweep(std::move(configuration));
    for (const bool lasting : {false, true}) {
      const long descriptors = entries("/proc/self/fd");
      const long calls = sweep.run(step, lasting);
      check(entries("/proc/self/fd") == descriptors, std::string(name) + ": descriptors are given back");
      check(entries("/proc/self/task") == 3, std::string(name) + ": threads are given back");
      std::printf("pressure-test: %s, %ld calls, %s\n", name, calls, lasting ? "each and all after it" : "each alone");
      std::fflush(stdout);
    }
  }
  std::printf("pressure-test: %ld checks\n", checks.load());
  return 0;
}
