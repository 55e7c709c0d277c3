// Runs a program over batches of tokens on a team of threads.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../base/team.h"
#include "engine.h"
#include "ops.h"
#include "storage.h"

namespace cflow {

/// Threads claim units from their own contiguous range first, then from those of the others: static shares, so that a
/// thread streams through neighbouring weights, and no waiting for one that the system has paused.
class WorkShares {
 public:
  explicit WorkShares(unsigned threads) : shares_(threads) {}

  void reset(uint32_t units);
  /// The next unit for a thread; false when none is left.
  bool claim(unsigned thread, uint32_t& unit);

  /// Units from `first` to `end` that may have to wait for the disk: behind the others, and in order, so that no thread
  /// waits for what comes last while what has come is left.
  void reset_waiting(uint32_t first, uint32_t end);

 private:
  struct alignas(64) Share {
    std::atomic<uint32_t> next{0};
    uint32_t end = 0;
  };
  std::vector<Share> shares_;
  Share waiting_;
};

struct Tokens {
  const int32_t* ids;
  uint32_t count;
  /// Position of the first.
  uint64_t start;
  bool all_logits;
};

class Executor {
 public:
  /// @throws Error INTERNAL (program), MEMORY, LIMIT_EXCEEDED (threads)
  Executor(Program program, Storage& storage, const EngineOptions& options);

  /// Passes a batch of at most max_batch tokens through the model. What it gives stands in `output` then.
  /// @throws Error INTERRUPTED when `cancelled` becomes true, NOT_READABLE, NONFINITE_WEIGHT, MEMORY,
  /// LIMIT_EXCEEDED (a key or value beyond an f16 cache)
  void run(const Tokens& tokens, std::vector<KvCache>& caches, KvSpill* spill, const std::atomic<bool>& cancelled);
  /// Of token `index` of the last batch; without all_logits only the last has any.
  const float* output(uint32_t index) const { return buffers_.row(program_.output, index); }

  const Program& program() const { return program_; }
  uint64_t scratch_bytes() const { return scratch_bytes_.load(std::memory_order_relaxed); }
  uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  /// Of one token.
  uint64_t barriers() const;
  /// Only between runs.
  std::vector<ProfileEntry> profile() const;
  /// Of batches that ran to their end.
  std::vector<Routing> take_routings() { return std::exchange(routings_, {}); }

 private:
  struct PreparedPhase {
    std::vector<std::unique_ptr<ParallelOp>> parallel;
    std::vector<std::unique_ptr<TokenOp>> serial;
    std::vector<std::unique_ptr<TransferOp>> transfers;
    /// Units of parallel[i] end at ends[i]; those that wait for the disk come last.
    std::vector<uint32_t> ends;
  };
  using Clock = std::chrono::steady_clock;
  /// Time by what it went into; one a thread.
  using Profile = std::map<const char*, ProfileEntry>;
  static constexpr const char *kWait = "wait", *kTransfer = "transfer", *kPrepare = "prepare";

  void name_profiles();
  void work(size_t first_phase, unsigned thread);
  void run_units(PreparedPhase& phase, unsigned thread);
  void run_serial(PreparedPhase& phase, uint32_t first, uint32_t end, unsigned thread);
  void prepare(size_t phase, unsigned thread);
  void finish_phase(size_t phase, bool serial, unsigned thread);
  template <typename Body>
  void guarded(Body&& body);
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

  // State of the current batch.
  Batch batch_{};
  uint32_t head_first_ = 0;
  const std::atomic<bool>* cancelled_ = nullptr;
  Faults faults_;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  bool stopping_ = false;

  std::atomic<uint64_t> bytes_read_{0};
  std::atomic<uint64_t> scratch_bytes_{0};
  /// Last: its threads use everything above.
  Team team_;
};

}  // namespace cflow
