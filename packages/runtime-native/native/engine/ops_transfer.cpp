// Calls, waits and releases of the disk tier, as steps.
#include <algorithm>

#include "ops_grouping.h"
#include "storage.h"

namespace cflow {

namespace {

class CallExpertsOp final : public TransferOp {
 public:
  CallExpertsOp(const step::CallExperts& s, uint32_t experts, const Context& context)
      : context_(context), step_(s), store_(context.storage.experts()), grouping_(s.routing, s.top_k, experts, context.buffers) {
    if (s.top_k > experts || context.buffers.length(s.routing) != uint64_t{2} * s.top_k) throw Error("INTERNAL", "a call of experts without a routing");
  }

  void run(const Batch& batch) override {
    grouping_.group(batch);
    uses_.clear();
    for (const auto& active : grouping_.active()) uses_.push_back({active.expert, active.count});
    if (context_.routings && !step_.ahead) record(batch);
    if (!store_) return;
    if (!step_.ahead) return store_->call(step_.bank, uses_);
    // One token's stand by likelihood already, those of several by expert.
    std::stable_sort(uses_.begin(), uses_.end(), [](const auto& a, const auto& b) { return a.count > b.count; });
    store_->call_ahead(step_.bank, uses_, Grouping::alone(batch));
  }

 private:
  void record(const Batch& batch) const {
    for (const Span& span : batch.rows->spans()) {
      Routing routing{step_.bank, span.position, step_.top_k, {}, span.piece};
      for (uint32_t t = span.first; t < span.end; t++) {
        for (uint32_t slot = 0; slot < step_.top_k; slot++) {
          routing.experts.push_back(static_cast<uint16_t>(grouping_.expert_of(t, slot)));
        }
      }
      context_.routings->push_back(std::move(routing));
    }
  }

  const Context context_;
  const step::CallExperts step_;
  ExpertStore* const store_;
  Grouping grouping_;
  std::vector<ExpertUse> uses_;
};

/// Calls `act` of a store with one index.
template <class Store>
class StoreOp final : public TransferOp {
 public:
  StoreOp(Store* store, void (Store::*act)(uint32_t), uint32_t index) : store_(store), act_(act), index_(index) {}
  void run(const Batch&) override {
    if (store_) (store_->*act_)(index_);
  }

 private:
  Store* const store_;
  void (Store::*const act_)(uint32_t);
  const uint32_t index_;
};

}  // namespace

std::unique_ptr<TransferOp> make_transfer(const Step& step, const Program& program, const Context& context) {
  using Op = std::unique_ptr<TransferOp>;
  ExpertStore* experts = context.storage.experts();
  StreamRing* streams = context.storage.streams();
  const auto bank = [&](uint32_t index) {
    if (index >= program.banks.size()) throw Error("INTERNAL", "a transfer of a bank that there is not");
    return index;
  };
  const auto stream = [&](uint32_t index) {
    if (index >= program.streams.size()) throw Error("INTERNAL", "a transfer of a stream that there is not");
    return index;
  };
  return std::visit(
      Overloads{
          [&](const step::CallExperts& s) -> Op {
            return std::make_unique<CallExpertsOp>(s, static_cast<uint32_t>(program.banks[bank(s.bank)].size()), context);
          },
          [&](const step::SyncExperts& s) -> Op {
            return std::make_unique<StoreOp<ExpertStore>>(experts, &ExpertStore::sync, bank(s.bank));
          },
          [&](const step::ReleaseExperts& s) -> Op {
            return std::make_unique<StoreOp<ExpertStore>>(experts, &ExpertStore::release, bank(s.bank));
          },
          [&](const step::CallStream& s) -> Op {
            return std::make_unique<StoreOp<StreamRing>>(streams, &StreamRing::call, stream(s.stream));
          },
          [&](const step::SyncStream& s) -> Op {
            return std::make_unique<StoreOp<StreamRing>>(streams, &StreamRing::sync, stream(s.stream));
          },
          [&](const step::ReleaseStream& s) -> Op {
            return std::make_unique<StoreOp<StreamRing>>(streams, &StreamRing::release, stream(s.stream));
          },
          [](const auto&) -> Op { throw Error("INTERNAL", "a step that computes stands among the transfers"); },
      },
      step);
}

}  // namespace cflow
