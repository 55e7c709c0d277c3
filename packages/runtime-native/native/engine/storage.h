// Where the weights of an engine come from: memory for good, and what is fetched from disk while it runs.
#pragma once

#include <memory>

#include "../tiers/expert_store.h"
#include "../tiers/stream_ring.h"
#include "engine.h"
#include "weights.h"

namespace cflow {

class Storage {
 public:
  /// @throws Error NOT_READABLE, MEMORY, LIMIT_EXCEEDED (threads), INTERNAL for regions outside the file
  Storage(int fd, uint64_t size, const Program& program, const EngineOptions& options);

  const Weights& weights() const { return *weights_; }
  /// Null when all experts are in memory.
  ExpertStore* experts() const { return experts_.get(); }
  /// Null when all streams are in memory.
  StreamRing* streams() const { return streams_.get(); }

  void begin(uint32_t tokens);
  void end() { weights_->end(); }
  /// Not while a batch runs.
  TierStats stats() const;

 private:
  std::unique_ptr<IoQueue> io_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<ExpertStore> experts_;
  std::unique_ptr<StreamRing> streams_;
};

}  // namespace cflow
