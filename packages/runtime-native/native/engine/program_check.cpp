#include "program_check.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ops_make.h"

namespace cflow {

namespace {

constexpr uint64_t kMostBuffers = 1u << 16;
constexpr uint64_t kMostHeads = 1u << 14;
/// Limit of the KV cache at the longest context.
constexpr uint64_t kMostCacheBytes = uint64_t{1} << 56;

[[noreturn]] void refuse(const std::string& problem) { throw Error("INTERNAL", "program: " + problem); }

void limit(uint64_t value, uint64_t most, const char* what) {
  if (value > most) refuse(std::string(what) + " " + std::to_string(value) + " is over " + std::to_string(most));
}

/// Calls visit(buffer) for all that a step reads or writes.
template <typename Visit>
void each_buffer(const Step& step, Visit&& visit) {
  std::visit(Overloads{
                 [&](const step::Embed& s) { visit(s.out); },
                 [&](const step::RmsNorm& s) { visit(s.input), visit(s.out); },
                 [&](const step::Quantize& s) { visit(s.input); },
                 [&](const step::Matvec& s) {
                   visit(s.input);
                   for (const step::MatvecOutput& out : s.outs) visit(out.out);
                 },
                 [&](const step::GatedMatvec& s) { visit(s.input), visit(s.out); },
                 [&](const step::PlainMatvec& s) { visit(s.input), visit(s.out); },
                 [&](const step::Rope& s) { visit(s.buffer); },
                 [&](const step::Append& s) { visit(s.k), visit(s.v); },
                 [&](const step::Attend& s) { visit(s.q), visit(s.out); },
                 [&](const step::Glu& s) { visit(s.gate), visit(s.up), visit(s.out); },
                 [&](const step::Route& s) { visit(s.logits), visit(s.out); },
                 [&](const step::ExpertsUp& s) { visit(s.input), visit(s.routing), visit(s.hidden); },
                 [&](const step::ExpertsDown& s) { visit(s.hidden), visit(s.routing), visit(s.out); },
                 [&](const step::Sum& s) {
                   for (const BufferId term : s.terms) visit(term);
                   visit(s.out);
                 },
                 [&](const step::Clamp& s) { visit(s.buffer); },
                 [&](const step::Softcap& s) { visit(s.buffer); },
                 [&](const step::Copy& s) { visit(s.input), visit(s.out); },
                 [&](const step::CallExperts& s) { visit(s.routing); },
                 // No `auto`: a step that is missing here does not compile.
                 [](const step::CallStream&) {},
                 [](const step::SyncExperts&) {},
                 [](const step::SyncStream&) {},
                 [](const step::ReleaseExperts&) {},
                 [](const step::ReleaseStream&) {},
             },
             step);
}

void check_sizes(const Program& program) {
  limit(program.buffers.size(), kMostBuffers, "the number of buffers");
  for (const uint32_t length : program.buffers) limit(length, kMostElements, "the length of a buffer");
  if (program.output >= program.buffers.size()) refuse("the output is no buffer");
  uint64_t elements = 0;
  for (const CacheShape& shape : program.caches) {
    limit(shape.kv_heads, kMostHeads, "the number of key heads");
    limit(shape.head_dim, kMostHeads, "the length of a head");
    elements += uint64_t{2} * shape.kv_heads * shape.head_dim;
    limit(elements, kMostCacheBytes / sizeof(float) / (uint64_t{program.context_length} + kPage), "elements of keys and values");
  }
  for (const auto& table : program.ropes) {
    limit(table.size(), kMostHeads, "the length of a table of frequencies");
    for (const double frequency : table) {
      if (!std::isfinite(frequency)) refuse("a frequency is not finite");
    }
  }
}

void check_steps(const Program& program) {
  for (const Step& step : program.steps) {
    each_buffer(step, [&](BufferId buffer) {
      if (buffer >= program.buffers.size()) refuse("a step uses buffer " + std::to_string(buffer) + ", which does not exist");
    });
    const auto* embed = std::get_if<step::Embed>(&step);
    if (embed && program.vocab_size > embed->matrix.rows) {
      refuse("the vocabulary of " + std::to_string(program.vocab_size) + " is larger than the embedding, which has " +
             std::to_string(embed->matrix.rows) + " rows");
    }
  }
}

void check_phases(const Program& program) {
  if (program.phases.empty()) refuse("there are no phases");
  if (program.head_phase >= program.phases.size()) refuse("the head is no phase");
  for (size_t i = 0; i < program.phases.size(); i++) {
    const Phase& phase = program.phases[i];
    for (const auto* list : {&phase.parallel, &phase.serial, &phase.transfers}) {
      for (const uint32_t step : *list) {
        if (step >= program.steps.size()) refuse("a phase runs step " + std::to_string(step) + ", which does not exist");
        if (i >= program.head_phase) continue;
        each_buffer(program.steps[step], [&](BufferId buffer) {
          if (buffer == program.output) refuse("step " + std::to_string(step) + " touches the output before the head");
        });
      }
    }
  }
}

}  // namespace

void check_program(const Program& program, const EngineOptions& options) {
  check_sizes(program);
  check_steps(program);
  check_phases(program);
  const auto dtype = static_cast<size_t>(program.dtype);
  if (dtype >= static_cast<size_t>(kDtypeCount)) refuse("dtype " + std::to_string(dtype) + " does not exist");
  const auto quantizes = [](const Step& step) { return std::holds_alternative<step::Quantize>(step); };
  if (options.kernels->matvec[static_cast<size_t>(Arithmetic::q8)][dtype]) return;
  if (std::any_of(program.steps.begin(), program.steps.end(), quantizes)) {
    refuse("tiles of this dtype take f32 activations only");
  }
}

}  // namespace cflow
