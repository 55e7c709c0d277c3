#include <algorithm>
#include <cmath>

#include "ops.h"

namespace cflow {

namespace {

uint32_t padded(uint32_t n) { return (n + kGroup - 1) / kGroup * kGroup; }

template <typename T>
void for_each_step(const Program& program, auto&& visit) {
  for (const Step& step : program.steps) {
    if (const T* found = std::get_if<T>(&step)) visit(*found);
  }
}

}  // namespace

Buffers::Buffers(const Program& program, const Kernels& kernels, Arithmetic arithmetic)
    : specs_(program.buffers.size()), output_(program.output) {
  for (size_t i = 0; i < specs_.size(); i++) {
    specs_[i].length = program.buffers[i];
    specs_[i].stride = padded(program.buffers[i]);
  }
  for_each_step<step::ExpertsUp>(program, [&](const step::ExpertsUp& s) { specs_[s.hidden].part_stride = padded(s.dim); });
  if (arithmetic == Arithmetic::q8) {
    for_each_step<step::Quantize>(program, [&](const step::Quantize& s) {
      specs_[s.input].parts = s.parts;
      specs_[s.input].part_length = s.part_length;
      specs_[s.input].part_bytes = kernels.q8_row_bytes(static_cast<int>(s.part_length));
    });
  }
  for (const auto& frequencies : program.ropes) ropes_.push_back({static_cast<uint32_t>(frequencies.size()), 0});
}

void Buffers::reserve(uint32_t tokens, uint32_t head) {
  specs_[output_].first = head;
  if (tokens <= tokens_ && tokens - head <= output_rows_) return;
  const uint32_t room = std::max(tokens, tokens_);
  const uint32_t output_room = std::max(tokens - head, output_rows_);
  std::vector<Spec> specs = specs_;
  std::vector<Rope> ropes = ropes_;
  size_t end = 0;
  auto take = [&end](size_t bytes) {
    const size_t at = end;
    end += (bytes + 63) / 64 * 64;
    return at;
  };
  for (size_t i = 0; i < specs.size(); i++) {
    Spec& spec = specs[i];
    const size_t rows = i == output_ ? output_room : room;
    spec.f32_at = take(rows * spec.stride * sizeof(float));
    spec.q8_at = take(rows * spec.parts * spec.part_bytes);
  }
  for (Rope& rope : ropes) rope.at = take(size_t{room} * 2 * rope.half * sizeof(float));
  Block block(end, "buffers");
  // Nothing throws from here on. What was there serves smaller batches if the new block is refused.
  block_ = std::move(block);
  specs_ = std::move(specs);
  ropes_ = std::move(ropes);
  tokens_ = room;
  output_rows_ = output_room;
}

float* Buffers::rope_row(uint32_t table, uint32_t token) const {
  const Rope& rope = ropes_[table];
  return reinterpret_cast<float*>(block_.data() + rope.at) + size_t{token} * 2 * rope.half;
}

/// ln g at a position, 0 while the table does not grow.
static double log_growth(const Program& program, uint32_t table, uint64_t position) {
  if (table >= program.rope_growths.size()) return 0;
  const auto& [factor, length] = program.rope_growths[table];
  if (length == 0 || position < length) return 0;
  return std::log(factor * static_cast<double>(position + 1) / length - (factor - 1));
}

void Buffers::fill_ropes(const Program& program, const BatchRows& rows) {
  for (uint32_t table = 0; table < ropes_.size(); table++) {
    const uint32_t half = ropes_[table].half;
    for (uint32_t t = 0; t < rows.count(); t++) {
      const uint64_t position = rows[t].position;
      float* cosines = rope_row(table, t);
      const double growth = half > 1 ? log_growth(program, table, position) / (half - 1) : 0;
      for (uint32_t i = 0; i < half; i++) {
        const double frequency = growth > 0 ? program.ropes[table][i] * std::exp(-growth * i) : program.ropes[table][i];
        const double angle = static_cast<double>(position) * frequency;
        cosines[i] = static_cast<float>(std::cos(angle));
        cosines[half + i] = static_cast<float>(std::sin(angle));
      }
    }
  }
}

}  // namespace cflow
