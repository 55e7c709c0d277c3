// Routed experts: tokens are grouped by the experts that they chose, so that each expert is read once a batch.
#include <algorithm>

#include "ops_grouping.h"
#include "ops_make.h"

namespace cflow {

namespace {

/// The experts of a layer: all of one shape, in memory or fetched.
class Bank {
 public:
  Bank(const std::vector<uint64_t>& experts, uint32_t bank, std::initializer_list<const StripedMatrix*> matrices,
       const Context& context)
      : bank_(bank), store_(bank == kInMemory ? nullptr : context.storage.experts()) {
    if (bank != kInMemory && !store_) throw Error("INTERNAL", "a bank without a store");
    uint64_t end = 0;
    for (const StripedMatrix* matrix : matrices) end = std::max(end, matrix->end());
    if (store_) {
      store_->check(bank, experts.size(), end);
    } else {
      for (const uint64_t offset : experts) bases_.push_back(weight_bytes(context, offset, end));
    }
  }

  bool fetched() const { return store_ != nullptr; }
  bool ready(uint32_t expert) const { return !store_ || store_->ready(bank_, expert); }
  const uint8_t* wait(uint32_t expert) const { return store_ ? store_->wait(bank_, expert) : bases_[expert]; }

 private:
  const uint32_t bank_;
  const ExpertStore* const store_;
  std::vector<const uint8_t*> bases_;
};

void check_routing(const Context& context, BufferId routing, uint32_t top_k, size_t experts) {
  check_output(context, routing, uint64_t{2} * top_k, "routing");
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
        gate_(s.gate, context.dtype),
        up_(s.up, context.dtype),
        bank_(s.experts, s.bank, {&gate_, &up_}, context),
        glu_(context.kernels.glu[static_cast<size_t>(s.activation)]),
        grouping_(s.routing, s.top_k, static_cast<uint32_t>(s.experts.size()), context.buffers) {
    check_routing(context, s.routing, s.top_k, s.experts.size());
    check_activations(context, s.input, s.gate.cols, name());
    check_output(context, s.hidden, uint64_t{s.top_k} * part_stride_, name());
    if (s.gate.rows != s.dim || s.up.rows != s.dim || s.up.cols != s.gate.cols) {
      throw Error("INTERNAL", "gate and up of an expert differ in shape");
    }
  }

  const char* name() const override { return "experts up"; }
  uint32_t prepare(const Batch& batch) override {
    grouping_.group(batch);
    // What has arrived first: the rest arrives meanwhile.
    if (bank_.fetched()) grouping_.bring_forward([this](uint32_t expert) { return bank_.ready(expert); });
    return static_cast<uint32_t>(grouping_.active().size()) * gate_.stripes();
  }
  uint64_t bytes() const override { return grouping_.active().size() * (gate_.bytes() + up_.bytes()); }
  bool waits() const override { return bank_.fetched(); }

  void run(const Batch&, uint32_t unit, Scratch& scratch) const override {
    const Grouping::Active& active = grouping_.active()[unit / gate_.stripes()];
    const uint32_t stripe = unit % gate_.stripes();
    const uint8_t* base = bank_.wait(active.expert);
    Grouping::by_blocks(active, [&](Precision precision, uint32_t first, uint32_t tokens) {
      run_block(base, stripe, precision, first, tokens, scratch);
    });
  }

 private:
  void run_block(const uint8_t* base, uint32_t stripe, Precision precision, uint32_t first, uint32_t tokens,
                 Scratch& scratch) const {
    const Arithmetic arithmetic = context_.buffers.arithmetic(input_);
    float* ups[kTokenBlock];
    for (uint32_t i = 0; i < tokens; i++) {
      const Choice& choice = grouping_.choice(first + i);
      scratch.in[i] = context_.buffers.activations(input_, choice.token);
      scratch.out[i] = context_.buffers.row(hidden_, choice.token) + size_t{choice.slot} * part_stride_ +
                       size_t{stripe} * kTileRows;
      ups[i] = scratch.second + size_t{i} * kTileRows;
    }
    multiply(context_, arithmetic, gate_, base, stripe, precision, scratch.in, tokens, scratch.out);
    multiply(context_, arithmetic, up_, base, stripe, precision, scratch.in, tokens, ups);
    const auto rows = static_cast<size_t>(gate_.stripe_rows(stripe));
    for (uint32_t i = 0; i < tokens; i++) glu_(scratch.out[i], ups[i], rows, scratch.out[i]);
  }

  const Context context_;
  const BufferId input_;
  const BufferId hidden_;
  const uint32_t part_stride_;
  const StripedMatrix gate_;
  const StripedMatrix up_;
  const Bank bank_;
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
        down_(s.down, context.dtype),
        bank_(s.experts, s.bank, {&down_}, context),
        grouping_(s.routing, s.top_k, static_cast<uint32_t>(s.experts.size()), context.buffers) {
    check_routing(context, s.routing, s.top_k, s.experts.size());
    check_output(context, s.out, s.down.rows, name());
    if (s.down.cols != s.dim) throw Error("INTERNAL", "down of an expert has another width than its hidden vector");
    const Buffers& buffers = context.buffers;
    const bool quantized = buffers.arithmetic(s.hidden) == Arithmetic::q8;
    const bool fits = quantized ? buffers.parts(s.hidden) == s.top_k && buffers.part_length(s.hidden) >= s.dim
                                : buffers.part_stride(s.hidden) >= s.dim &&
                                      uint64_t{buffers.part_stride(s.hidden)} * s.top_k == buffers.length(s.hidden);
    if (!fits) throw Error("INTERNAL", "hidden vectors of experts are not parts of their buffer");
  }

  const char* name() const override { return "experts down"; }
  uint32_t prepare(const Batch& batch) override {
    grouping_.group(batch);
    return down_.stripes();
  }
  uint64_t bytes() const override { return grouping_.active().size() * down_.bytes(); }
  bool waits() const override { return bank_.fetched(); }

  void run(const Batch& batch, uint32_t stripe, Scratch& scratch) const override {
    const auto rows = static_cast<size_t>(down_.stripe_rows(stripe));
    for (uint32_t t = batch.first; t < batch.end; t++) {
      float* out = row_of(t, stripe);
      for (size_t r = 0; r < rows; r++) out[r] = 0;
    }
    scratch.parts.resize(std::max(scratch.parts.size(), part_at(batch, {batch.end, 0})));
    for (const Grouping::Active& active : grouping_.active()) {
      const uint8_t* base = bank_.wait(active.expert);
      Grouping::by_blocks(active, [&](Precision precision, uint32_t first, uint32_t tokens) {
        if (precision == Precision::coarse) add_block(base, stripe, first, tokens, scratch);
        else keep_block(batch, base, stripe, first, tokens, scratch);
      });
    }
    // In the order of the routing, whatever experts the other rows chose.
    for (uint32_t t = batch.fine; t < batch.end; t++) {
      for (uint32_t slot = 0; slot < grouping_.top_k(); slot++) {
        add({t, slot}, scratch.parts.data() + part_at(batch, {t, slot}), stripe);
      }
    }
  }

 private:
  float* row_of(uint32_t token, uint32_t stripe) const {
    return context_.buffers.row(out_, token) + size_t{stripe} * kTileRows;
  }

  /// Where the part of a fine row's choice stands in Scratch::parts.
  size_t part_at(const Batch& batch, const Choice& choice) const {
    return (size_t{choice.token - batch.fine} * grouping_.top_k() + choice.slot) * kTileRows;
  }

  /// Coarse rows: the experts' parts are added up as they come, by expert.
  void add_block(const uint8_t* base, uint32_t stripe, uint32_t first, uint32_t tokens, Scratch& scratch) const {
    for (uint32_t i = 0; i < tokens; i++) scratch.out[i] = scratch.first + size_t{i} * kTileRows;
    multiply_block(base, stripe, Precision::coarse, first, tokens, scratch);
    for (uint32_t i = 0; i < tokens; i++) add(grouping_.choice(first + i), scratch.out[i], stripe);
  }

  /// Fine rows: the parts are kept, to be added up by routing.
  void keep_block(const Batch& batch, const uint8_t* base, uint32_t stripe, uint32_t first, uint32_t tokens,
                  Scratch& scratch) const {
    for (uint32_t i = 0; i < tokens; i++) {
      scratch.out[i] = scratch.parts.data() + part_at(batch, grouping_.choice(first + i));
    }
    multiply_block(base, stripe, Precision::fine, first, tokens, scratch);
  }

  void multiply_block(const uint8_t* base, uint32_t stripe, Precision precision, uint32_t first, uint32_t tokens,
                      Scratch& scratch) const {
    for (uint32_t i = 0; i < tokens; i++) {
      const Choice& choice = grouping_.choice(first + i);
      scratch.in[i] = context_.buffers.activations(hidden_, choice.token, choice.slot);
    }
    multiply(context_, context_.buffers.arithmetic(hidden_), down_, base, stripe, precision, scratch.in, tokens, scratch.out);
  }

  void add(const Choice& choice, const float* part, uint32_t stripe) const {
    const auto rows = static_cast<size_t>(down_.stripe_rows(stripe));
    const float weight = grouping_.weight(choice);
    float* out = row_of(choice.token, stripe);
    for (size_t r = 0; r < rows; r++) out[r] += weight * part[r];
  }

  const Context context_;
  const BufferId hidden_;
  const BufferId out_;
  const StripedMatrix down_;
  const Bank bank_;
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
