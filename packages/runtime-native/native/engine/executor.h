// Runs a program over batches of tokens on a team of threads.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../base/team.h"
#include "engine.h"
#include "ops.h"
#include "shares.h"
#include "storage.h"

namespace cflow {

class Executor {
 public:
  /// @throws Error INTERNAL (program), MEMORY, LIMIT_EXCEEDED (threads)
  Executor(Program program, Storage& storage, const EngineOptions& options);

  /// Passes pieces of at most max_batch tokens in all through the model, each of another sequence. What it gives stands in
  /// `output` then, except for pieces that have a `failure`: those end when their `cancelled` becomes true, or by their
  /// numbers, and the others go on.
  /// @throws Error NOT_READABLE, MEMORY: no piece has passed
  void run(std::span<const Piece> pieces);
  /// INTERRUPTED, NONFINITE_WEIGHT, or LIMIT_EXCEEDED (a key or value beyond an f16 cache), of a piece of the last batch.
  std::optional<Error> failure(size_t piece) const;
  /// Of token `index` of those of a piece that have logits.
  const float* output(size_t piece, uint32_t index) const {
    return buffers_.row(program_.output, rows_.output(piece) + index);
  }

  const Program& program() const { return program_; }
  uint64_t scratch_bytes() const { return scratch_bytes_.load(std::memory_order_relaxed); }
  uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  /// Of one token.
  uint64_t barriers() const;
  /// Phases of the last batch of one token that threads shared; all until there was one.
  uint64_t shared_phases() const { return shared_phases_.load(std::memory_order_relaxed); }
  /// Only between runs.
  std::vector<ProfileEntry> profile() const;
  /// Of batches that ran to their end.
  std::vector<Routing> take_routings() { return std::exchange(routings_, {}); }

 private:
  struct PreparedPhase {
    std::vector<std::unique_ptr<ParallelOp>> parallel;
    std::vector<std::unique_ptr<TokenOp>> serial;
    std::vector<std::unique_ptr<TransferOp>> transfers;
    /// Units of parallel[i] end at ends[i]; those that may wait for the disk come last.
    std::vector<uint32_t> ends;
    /// Of these units, those that may wait.
    uint32_t waiting = 0;
    /// Whether the helpers are called.
    bool shared = false;
  };
  using Clock = std::chrono::steady_clock;
  /// Time by what it went into; one a thread.
  using Profile = std::map<const char*, ProfileEntry>;
  static constexpr const char *kWait = "wait", *kTransfer = "transfer", *kPrepare = "prepare";

  void name_profiles();
  void run_phase(size_t index);
  void prepare(size_t index);
  void run_section(uint32_t units, uint32_t waiting, bool shared);
  void run_units(unsigned thread);
  void run_unit(uint32_t unit, unsigned thread);
  void run_slice(uint32_t slice, unsigned thread);
  void run_serial(uint32_t first, uint32_t end, unsigned thread);
  void finish_phase(bool serial);
  template <typename Body>
  void guarded(Body&& body);
  bool hopeless() const;
  void throw_failure();
  template <typename Body>
  void timed(unsigned thread, const char* name, uint64_t bytes, Body&& body);

  const Program program_;
  Storage& storage_;
  const EngineOptions options_;
  Buffers buffers_;
  std::vector<Routing> routings_;
  const Context context_;
  std::vector<PreparedPhase> phases_;
  std::vector<std::unique_ptr<Scratch>> scratch_;
  std::vector<Profile> profiles_;
  WorkShares shares_;

  // State of the current batch. Changes only while no unit is offered: helpers read it for units that they have claimed.
  PreparedPhase* phase_ = nullptr;
  /// Units are slices of the tokens, through the serial steps.
  bool slices_ = false;
  /// Work of the phases so far, and how many had any.
  uint64_t work_ = 0;
  uint64_t worked_phases_ = 0;
  Batch batch_{};
  BatchRows rows_;
  std::deque<Faults> faults_;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  bool stopping_ = false;

  std::atomic<uint64_t> bytes_read_{0};
  std::atomic<uint64_t> scratch_bytes_{0};
  std::atomic<uint64_t> shared_phases_{0};
  /// Last: its threads use everything above.
  Team team_;
};

}  // namespace cflow
