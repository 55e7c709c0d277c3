// Programs that contradict themselves or their file: the engine refuses them, or runs them without leaving its memory (for
// the sanitizers). Prints what it checked; exits 1 at the first failure.
#include "engine-model.h"

using namespace engine_test;

namespace {

template <typename T>
T& step_of(Program& program, size_t skip = 0) {
  for (Step& step : program.steps) {
    if (T* found = std::get_if<T>(&step)) {
      if (skip-- == 0) return *found;
    }
  }
  check(false, "a step of the kind");
  std::abort();
}

/// The program with one more transfer at the end of a phase.
void add_transfer(Program& program, size_t phase, Step step) {
  program.steps.push_back(std::move(step));
  program.phases[phase].transfers.push_back(static_cast<uint32_t>(program.steps.size() - 1));
}

struct Opened {
  std::string code;
  std::shared_ptr<Engine> engine;
};

Opened open(const TemporaryFile& file, uint64_t size, Program program, const EngineOptions& options) {
  try {
    return {"", Engine::open(file.fd(), size, std::move(program), options)};
  } catch (const Error& error) {
    return {error.code(), nullptr};
  }
}

using Change = void (*)(Program&);

/// Refused when it is opened.
void test_refused() {
  const Model model = make_model();
  const TemporaryFile file(model.bytes);
  const std::pair<const char*, Change> changes[] = {
      {"no phases", [](Program& p) { p.phases.clear(); }},
      {"a head beyond the phases", [](Program& p) { p.head_phase = static_cast<uint32_t>(p.phases.size()); }},
      {"a vocabulary larger than the embedding", [](Program& p) { p.vocab_size = kVocab + 1; }},
      {"an output that exists before the head", [](Program& p) { p.output = 0; }},
      {"a head that begins later than its output", [](Program& p) { p.phases.push_back({}); p.head_phase++; }},
      {"an output that does not exist", [](Program& p) { p.output = 99; }},
      {"a buffer that does not exist", [](Program& p) { step_of<step::Copy>(p).input = 99; }},
      {"a clamp of a buffer that does not exist", [](Program& p) { p.steps.back() = step::Clamp{99, 1}; }},
      {"a clamp to NaN", [](Program& p) { p.steps.back() = step::Clamp{0, NAN}; }},
      {"a clamp to nothing", [](Program& p) { p.steps.back() = step::Clamp{0, 0}; }},
      {"a buffer of 2^32 - 1", [](Program& p) { p.buffers[0] = UINT32_MAX; }},
      {"a buffer whose row pads to 2^32", [](Program& p) { p.buffers.push_back(UINT32_MAX - 5); }},
      {"heads whose product wraps", [](Program& p) { p.caches[0] = {1u << 16, 1u << 16, kWindow}; }},
      {"heads whose product wraps to what the buffer has",
       [](Program& p) {
         p.caches[0] = {(1u << 31) + kKvHeads / 3, 2 * kHeadDim, kWindow};
         step_of<step::Attend>(p).heads = (1u << 31) + kHeads / 2;
       }},
      {"as many chosen as wrap", [](Program& p) { step_of<step::Route>(p).top_k = (1u << 31) + kTopK; }},
      {"experts as many as wrap", [](Program& p) { step_of<step::ExpertsUp>(p).top_k = (1u << 31) + kTopK; }},
      {"a matrix of 2^31 columns", [](Program& p) { step_of<step::Embed>(p).matrix.cols = 1u << 31; }},
      {"a frequency that is not finite", [](Program& p) { p.ropes[0][0] = INFINITY; }},
      {"quantized under f32 arithmetic", [](Program& p) { p.steps[1] = step::Quantize{0, 1, kDim}; }},
      {"hidden vectors of another stride", [](Program& p) { step_of<step::ExpertsUp>(p).dim = 8; }},
      {"hidden vectors that nobody divides",
       [](Program& p) {
         for (Phase& phase : p.phases) {
           std::erase_if(phase.parallel, [&](uint32_t i) { return std::holds_alternative<step::ExpertsUp>(p.steps[i]); });
         }
         for (Step& step : p.steps) {
           if (std::holds_alternative<step::ExpertsUp>(step)) step = step::Softcap{0, 1};
         }
       }},
      {"contexts whose caches cannot be counted",
       [](Program& p) {
         p.context_length = UINT32_MAX;
         for (int i = 0; i < 64; i++) p.caches.push_back({1u << 14, 1u << 14, 0});
       }},
      {"a dtype that does not exist", [](Program& p) { p.dtype = static_cast<Dtype>(9); }},
      {"weights whose offset wraps",
       [](Program& p) { step_of<step::PlainMatvec>(p).weight = INT64_MAX - 3; }},
      {"stripes whose offset wraps", [](Program& p) { step_of<step::Embed>(p).matrix.stripes[1] = UINT64_MAX - 100; }},
  };
  for (const auto& [name, change] : changes) {
    Program program = model.program;
    program.steps.push_back(step::Copy{0, 1, 0});
    program.phases[0].serial.push_back(static_cast<uint32_t>(program.steps.size() - 1));
    change(program);
    const Opened opened = open(file, model.bytes.size(), std::move(program), options_with(2, find_kernels("")));
    check(opened.code == "INTERNAL", std::string(name) + " is refused: " + opened.code);
  }
  Program program = model.program;
  const Opened large = open(file, model.bytes.size() + (1u << 20), std::move(program), options_with(1, find_kernels("")));
  check(large.code == "NOT_READABLE", "a size beyond the file: " + large.code);
}

/// Refused when the parts come to be used.
void test_transfers() {
  const Model model = make_model(2, Fetch::overlap);
  const TemporaryFile file(model.bytes);
  EngineOptions options = options_with(2, find_kernels(""), 2);
  options.weights = WeightMode::direct;
  options.direct.expert_slots = 2 * kExperts;
  options.direct.stream_slots = 3;
  options.direct.io.block = 8192;
  const std::pair<const char*, Change> changes[] = {
      {"a release without a call", [](Program& p) { add_transfer(p, 0, step::ReleaseStream{3}); }},
      {"a release twice",
       [](Program& p) { add_transfer(p, p.phases.size() - 1, step::ReleaseStream{step_of<step::ReleaseStream>(p).stream}); }},
      {"a wait without a call", [](Program& p) { add_transfer(p, 0, step::SyncStream{3}); }},
      {"calls out of order", [](Program& p) { add_transfer(p, 0, step::CallStream{4}); }},
      {"experts that were not called",
       [](Program& p) {
         for (Phase& phase : p.phases) {
           std::erase_if(phase.transfers, [&](uint32_t i) { return std::holds_alternative<step::CallExperts>(p.steps[i]); });
         }
       }},
  };
  for (const auto& [name, change] : changes) {
    Program program = model.program;
    change(program);
    const Opened opened = open(file, model.bytes.size(), std::move(program), options);
    check(opened.code.empty() || opened.code == "INTERNAL", std::string(name) + ": " + opened.code);
    if (!opened.engine) continue;
    for (int i = 0; i < 3; i++) {
      const std::string code = run(*opened.engine, opened.engine->create_session(), prompt(3)).code;
      check(code == "INTERNAL", std::string(name) + " fails the job: " + code);
    }
  }
  // Releases of experts are idempotent: what is not held is not given back.
  Program twice = model.program;
  add_transfer(twice, 0, step::ReleaseExperts{0});
  const Opened opened = open(file, model.bytes.size(), std::move(twice), options);
  check(run(*opened.engine, opened.engine->create_session(), prompt(3)).code.empty(), "experts released before a call");
}

}  // namespace

int main() {
  test_refused();
  test_transfers();
  std::printf("program-test: %ld checks\n", checks.load());
  return 0;
}
