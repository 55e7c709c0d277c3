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

/// The choices of a batch by expert. Within one, by token.
class Grouping {
 public:
  Grouping(BufferId routing, uint32_t top_k, uint32_t experts, const Buffers& buffers)
      : buffers_(buffers), routing_(routing), top_k_(top_k), counts_(experts + 1) {}

  void group(const Batch& batch) {
    const auto total = size_t{batch.tokens()} * top_k_;
    choices_.resize(total);
    active_.clear();
    if (batch.tokens() == 1) return by_routing(batch.first);
    std::fill(counts_.begin(), counts_.end(), 0);
    each(batch, [&](uint32_t expert, Choice) { counts_[expert + 1]++; });
    for (size_t i = 1; i < counts_.size(); i++) {
      if (counts_[i]) active_.push_back({static_cast<uint32_t>(i - 1), counts_[i - 1], counts_[i]});
      counts_[i] += counts_[i - 1];
    }
    each(batch, [&](uint32_t expert, Choice choice) { choices_[counts_[expert]++] = choice; });
  }

  /// An expert that somebody chose.
  struct Active {
    uint32_t expert;
    uint32_t from;
    uint32_t count;
  };
  const std::vector<Active>& active() const { return active_; }
  /// Those for which first(expert) holds come to the front; otherwise the order stays.
  template <typename First>
  void bring_forward(First&& first) {
    std::stable_partition(active_.begin(), active_.end(), [&](const Active& a) { return first(a.expert); });
  }
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
  /// One token: in the order of its routing, in which the reference sums.
  void by_routing(uint32_t token) {
    for (uint32_t slot = 0; slot < top_k_; slot++) {
      choices_[slot] = {token, slot};
      active_.push_back({expert_of(token, slot), slot, 1});
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
