// Routings of a batch, grouped by expert.
#pragma once

#include <algorithm>
#include <vector>

#include "ops.h"

namespace cflow {

/// A token that chose an expert, and in which slot of its routing.
struct Choice {
  uint32_t token;
  uint32_t slot;
};

/// The choices of a batch by expert. Within one, by row: coarse ones before fine ones.
class Grouping {
 public:
  Grouping(BufferId routing, uint32_t top_k, uint32_t experts, const Buffers& buffers)
      : buffers_(buffers), routing_(routing), top_k_(top_k), counts_(experts + 1) {}

  /// Whether the batch is one token that was passed alone.
  static bool alone(const Batch& batch) { return batch.tokens() == 1 && batch.fine == batch.first; }

  void group(const Batch& batch) {
    const auto total = size_t{batch.tokens()} * top_k_;
    choices_.resize(total);
    active_.clear();
    if (alone(batch)) return by_routing(batch.first);
    std::fill(counts_.begin(), counts_.end(), 0);
    each(batch, [&](uint32_t expert, Choice) { counts_[expert + 1]++; });
    for (size_t i = 1; i < counts_.size(); i++) {
      if (counts_[i]) active_.push_back({static_cast<uint32_t>(i - 1), counts_[i - 1], 0, counts_[i]});
      counts_[i] += counts_[i - 1];
    }
    each(batch, [&](uint32_t expert, Choice choice) { choices_[counts_[expert]++] = choice; });
    for (Active& active : active_) {
      while (active.coarse < active.count && choices_[active.from + active.coarse].token < batch.fine) active.coarse++;
    }
  }

  /// An expert that somebody chose.
  struct Active {
    uint32_t expert;
    uint32_t from;
    /// Choices of coarse rows, then of fine ones; all of them.
    uint32_t coarse;
    uint32_t count;
  };
  /// Calls body(precision, first choice, choices) for blocks of at most kTokenBlock choices of one precision.
  template <typename Body>
  static void by_blocks(const Active& active, Body&& body) {
    const auto blocks = [&](Precision precision, uint32_t first, uint32_t end) {
      for (; first < end; first += kTokenBlock) body(precision, first, std::min(kTokenBlock, end - first));
    };
    blocks(Precision::coarse, active.from, active.from + active.coarse);
    blocks(Precision::fine, active.from + active.coarse, active.from + active.count);
  }
  const std::vector<Active>& active() const { return active_; }
  /// Those for which first(expert) holds come to the front; otherwise the order stays.
  template <typename First>
  void bring_forward(First&& first) {
    std::stable_partition(active_.begin(), active_.end(), [&](const Active& a) { return first(a.expert); });
  }
  uint32_t top_k() const { return top_k_; }
  const Choice& choice(uint32_t index) const { return choices_[index]; }
  float weight(const Choice& choice) const { return buffers_.row(routing_, choice.token)[top_k_ + choice.slot]; }
  /// The expert in a slot of a token's routing.
  uint32_t expert_of(uint32_t token, uint32_t slot) const {
    // A router that met NaN leaves what it likes here; the batch fails, but must not read outside.
    const float index = buffers_.row(routing_, token)[slot];
    const auto most = static_cast<float>(counts_.size() - 2);
    return static_cast<uint32_t>(index >= 0 && index <= most ? index : 0);
  }

 private:
  /// One token: the likeliest first.
  void by_routing(uint32_t token) {
    for (uint32_t slot = 0; slot < top_k_; slot++) {
      choices_[slot] = {token, slot};
      active_.push_back({expert_of(token, slot), slot, 0, 1});
    }
  }
  template <typename Visit>
  void each(const Batch& batch, Visit&& visit) const {
    for (uint32_t t = batch.first; t < batch.end; t++) {
      for (uint32_t slot = 0; slot < top_k_; slot++) visit(expert_of(t, slot), Choice{t, slot});
    }
  }

  const Buffers& buffers_;
  const BufferId routing_;
  const uint32_t top_k_;
  std::vector<uint32_t> counts_;
  std::vector<Choice> choices_;
  std::vector<Active> active_;
};

}  // namespace cflow
