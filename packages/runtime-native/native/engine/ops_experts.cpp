// Routed experts: tokens are grouped by the experts that they chose, so that each expert is read once a batch.
#include <algorithm>

#include "ops.h"
#include "ops_make.h"

namespace cflow {

namespace {

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
  const Choice& choice(uint32_t index) const { return choices_[index]; }
  float weight(const Choice& choice) const { return buffers_.row(routing_, choice.token)[top_k_ + choice.slot]; }

 private:
  /// One token: in the order of its routing, in which the reference sums.
  void by_routing(uint32_t token) {
    for (uint32_t slot = 0; slot < top_k_; slot++) {
      choices_[slot] = {token, slot};
      active_.push_back({expert_of(token, slot), slot, 1});
    }
  }
  uint32_t expert_of(uint32_t token, uint32_t slot) const {
    // A router that met NaN leaves what it likes here; the batch fails, but must not read outside.
    const float index = buffers_.row(routing_, token)[slot];
    const auto most = static_cast<float>(counts_.size() - 2);
    return static_cast<uint32_t>(index >= 0 && index <= most ? index : 0);
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

std::vector<StripedMatrix> expert_matrices(const TiledMatrix& matrix, const std::vector<uint64_t>& experts,
                                           const Context& context) {
  std::vector<StripedMatrix> matrices;
  matrices.reserve(experts.size());
  for (const uint64_t base : experts) matrices.emplace_back(matrix, context, base);
  return matrices;
}

void check_routing(const Context& context, BufferId routing, uint32_t top_k, size_t experts) {
  check_output(context, routing, 2 * top_k, "routing");
  if (experts == 0 || top_k == 0 || top_k > experts) {
    throw Error("INTERNAL", "top " + std::to_string(top_k) + " of " + std::to_string(experts) + " experts");
  }
}

/// A unit is an output stripe of gate and up of one expert.
class ExpertsUpOp final : public ParallelOp {
 public:
  ExpertsUpOp(const step::ExpertsUp& s, const Context& context)
      : context_(context),
        input_(s.input),
        hidden_(s.hidden),
        part_stride_(static_cast<uint32_t>(ceil_div(static_cast<int>(s.dim), kGroup) * kGroup)),
        gates_(expert_matrices(s.gate, s.experts, context)),
        ups_(expert_matrices(s.up, s.experts, context)),
        glu_(context.kernels.glu[static_cast<size_t>(s.activation)]),
        grouping_(s.routing, s.top_k, static_cast<uint32_t>(s.experts.size()), context.buffers) {
    check_routing(context, s.routing, s.top_k, s.experts.size());
    check_input(context, s.input, s.gate.cols, name());
    check_output(context, s.hidden, s.top_k * part_stride_, name());
    if (s.gate.rows != s.dim || s.up.rows != s.dim || s.up.cols != s.gate.cols) {
      throw Error("INTERNAL", "gate and up of an expert differ in shape");
    }
  }

  const char* name() const override { return "experts up"; }
  uint32_t prepare(const Batch& batch) override {
    grouping_.group(batch);
    return static_cast<uint32_t>(grouping_.active().size()) * gates_[0].stripes();
  }
  uint64_t bytes() const override { return grouping_.active().size() * (gates_[0].bytes() + ups_[0].bytes()); }

  void run(const Batch&, uint32_t unit, Scratch& scratch) const override {
    const Grouping::Active& active = grouping_.active()[unit / gates_[0].stripes()];
    const uint32_t stripe = unit % gates_[0].stripes();
    for (uint32_t done = 0; done < active.count; done += kTokenBlock) {
      run_block(active, stripe, done, std::min(kTokenBlock, active.count - done), scratch);
    }
  }

 private:
  void run_block(const Grouping::Active& active, uint32_t stripe, uint32_t from, uint32_t tokens, Scratch& scratch) const {
    const Arithmetic arithmetic = context_.buffers.arithmetic(input_);
    const StripedMatrix& gate = gates_[active.expert];
    float* ups[kTokenBlock];
    for (uint32_t i = 0; i < tokens; i++) {
      const Choice& choice = grouping_.choice(active.from + from + i);
      scratch.in[i] = context_.buffers.activations(input_, choice.token);
      scratch.out[i] = context_.buffers.row(hidden_, choice.token) + size_t{choice.slot} * part_stride_ +
                       size_t{stripe} * kTileRows;
      ups[i] = scratch.second + size_t{i} * kTileRows;
    }
    multiply(context_, arithmetic, gate, stripe, scratch.in, tokens, scratch.out);
    multiply(context_, arithmetic, ups_[active.expert], stripe, scratch.in, tokens, ups);
    const auto rows = static_cast<size_t>(gate.stripe_rows(stripe));
    for (uint32_t i = 0; i < tokens; i++) glu_(scratch.out[i], ups[i], rows, scratch.out[i]);
  }

  const Context context_;
  const BufferId input_;
  const BufferId hidden_;
  const uint32_t part_stride_;
  const std::vector<StripedMatrix> gates_;
  const std::vector<StripedMatrix> ups_;
  void (*const glu_)(const float*, const float*, size_t, float*);
  Grouping grouping_;
};

/// A unit is an output stripe, of all experts that were chosen: it owns its rows of the sum, so no two threads add to one.
class ExpertsDownOp final : public ParallelOp {
 public:
  ExpertsDownOp(const step::ExpertsDown& s, const Context& context)
      : context_(context),
        hidden_(s.hidden),
        out_(s.out),
        downs_(expert_matrices(s.down, s.experts, context)),
        grouping_(s.routing, s.top_k, static_cast<uint32_t>(s.experts.size()), context.buffers) {
    check_routing(context, s.routing, s.top_k, s.experts.size());
    check_output(context, s.out, s.down.rows, name());
    if (s.down.cols != s.dim) throw Error("INTERNAL", "down of an expert has another width than its hidden vector");
  }

  const char* name() const override { return "experts down"; }
  uint32_t prepare(const Batch& batch) override {
    grouping_.group(batch);
    return downs_[0].stripes();
  }
  uint64_t bytes() const override { return grouping_.active().size() * downs_[0].bytes(); }

  void run(const Batch& batch, uint32_t stripe, Scratch& scratch) const override {
    const auto rows = static_cast<size_t>(downs_[0].stripe_rows(stripe));
    for (uint32_t t = batch.first; t < batch.end; t++) {
      float* out = row_of(t, stripe);
      for (size_t r = 0; r < rows; r++) out[r] = 0;
    }
    for (const Grouping::Active& active : grouping_.active()) {
      for (uint32_t done = 0; done < active.count; done += kTokenBlock) {
        run_block(active, stripe, done, std::min(kTokenBlock, active.count - done), scratch);
      }
    }
  }

 private:
  float* row_of(uint32_t token, uint32_t stripe) const {
    return context_.buffers.row(out_, token) + size_t{stripe} * kTileRows;
  }

  void run_block(const Grouping::Active& active, uint32_t stripe, uint32_t from, uint32_t tokens, Scratch& scratch) const {
    const StripedMatrix& down = downs_[active.expert];
    for (uint32_t i = 0; i < tokens; i++) {
      const Choice& choice = grouping_.choice(active.from + from + i);
      scratch.in[i] = context_.buffers.activations(hidden_, choice.token, choice.slot);
      scratch.out[i] = scratch.first + size_t{i} * kTileRows;
    }
    multiply(context_, context_.buffers.arithmetic(hidden_), down, stripe, scratch.in, tokens, scratch.out);
    const auto rows = static_cast<size_t>(down.stripe_rows(stripe));
    for (uint32_t i = 0; i < tokens; i++) {
      const Choice& choice = grouping_.choice(active.from + from + i);
      const float weight = grouping_.weight(choice);
      float* out = row_of(choice.token, stripe);
      for (size_t r = 0; r < rows; r++) out[r] += weight * scratch.out[i][r];
    }
  }

  const Context context_;
  const BufferId hidden_;
  const BufferId out_;
  const std::vector<StripedMatrix> downs_;
  Grouping grouping_;
};

}  // namespace

std::unique_ptr<ParallelOp> make_op(const step::ExpertsUp& s, const Context& context) {
  return std::make_unique<ExpertsUpOp>(s, context);
}
std::unique_ptr<ParallelOp> make_op(const step::ExpertsDown& s, const Context& context) {
  return std::make_unique<ExpertsDownOp>(s, context);
}

}  // namespace cflow
