// The engine: one model, a thread pool, and sessions that run on it one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../base/error.h"
#include "../io/io.h"
#include "../tiers/expert_store.h"
#include "../tiers/spill.h"
#include "batch.h"
#include "program.h"

namespace cflow {

/// Where weights live. mapped: the page cache, through mmap; opening is immediate. resident: read once into anonymous
/// memory on huge pages. direct: what the program says is resident, its streams and banks are fetched while it runs, and
/// the rest is mapped.
enum class WeightMode : uint8_t { mapped = 0, resident = 1, direct = 2 };

/// Of WeightMode::direct.
struct DirectOptions {
  IoOptions io;
  /// Experts that memory holds.
  uint32_t expert_slots = 0;
  /// Tokens after which half of an expert's frequency is forgotten.
  double half_life = 64;
  /// Streams that memory holds.
  uint32_t stream_slots = 0;
  /// Fetch streams before they are called.
  bool read_ahead = true;
};

struct EngineOptions {
  WeightMode weights = WeightMode::mapped;
  Arithmetic arithmetic = Arithmetic::q8;
  CacheType cache = CacheType::f16;
  /// Threads that compute, the engine's own included; at least 1.
  unsigned threads = 1;
  /// Threads share every phase, also those that are too short to gain from it.
  bool share_short = true;
  /// Tokens of one batch of a prefill.
  unsigned max_batch = 512;
  const Kernels* kernels = nullptr;
  /// Collect time per kind of step.
  bool profile = false;
  /// Keep what every CallExperts was called with.
  bool record_routings = false;
  DirectOptions direct;
  SpillOptions spill;
};

/// Of one kind of step; filled when profiling.
struct ProfileEntry {
  std::string name;
  uint64_t calls = 0;
  /// Summed over threads.
  double seconds = 0;
  /// Weight bytes read.
  uint64_t bytes = 0;
};

/// Of the disk tier.
struct TierStats {
  ExpertStats experts;
  /// Slots for streams.
  uint64_t stream_bytes = 0;
  /// Time spent waiting for the disk, summed over threads.
  double stall_seconds = 0;
  IoStats io;
  /// Keys and values of all sessions.
  SpillStats spill;
};

/// What a batch chose of a bank.
struct Routing {
  uint32_t bank;
  /// Position of the first token.
  uint64_t position;
  /// [tokens, top_k].
  uint32_t top_k;
  std::vector<uint16_t> experts;
  /// Of the batch.
  uint32_t piece = 0;
};

struct EngineStats {
  /// Of the file.
  uint64_t weight_bytes = 0;
  /// Anonymous memory that holds weights; 0 when they are mapped.
  uint64_t resident_bytes = 0;
  uint64_t scratch_bytes = 0;
  /// Barriers of one decoded token.
  uint64_t barriers_per_token = 0;
  /// Phases of the last decoded token that threads shared; all until there was one.
  uint64_t shared_phases = 0;
  /// Weight bytes read by the steps so far.
  uint64_t bytes_read = 0;
  std::vector<ProfileEntry> profile;
  TierStats tiers;
};

class Engine;

/// One sequence: its position and key/value caches.
class Session {
 public:
  virtual ~Session() = default;
  /// Makes the running or the next job of this session end with INTERRUPTED. Any thread.
  virtual void cancel() = 0;
  /// Takes back a cancel() that came too late for the job it was meant for. Between jobs only.
  virtual void resume() = 0;
  /// Goes back to the first `position` tokens that have passed, between jobs only, and also after one that failed. Returns
  /// the position reached: less where a ring has overwritten what the next token sees (then 0), or where the page of
  /// `position` is on disk. May wait for the disk.
  /// @throws Error USAGE beyond the tokens that have passed
  virtual uint64_t truncate(uint64_t position) = 0;
  /// Bytes of the key/value caches; a page that a fork shares counts in each. Any thread.
  virtual uint64_t cache_bytes() const = 0;
};

/// Tokens of one sequence: one that was generated, or a prompt, or a piece of one.
struct Run {
  std::shared_ptr<Session> session;
  std::vector<int32_t> ids;
  /// [length of program.output] for the last token, [ids.size(), that length] for all. Must live until the job is done.
  float* output = nullptr;
  Logits logits = Logits::last;
  /// Set if it failed; the tokens may have passed in part.
  std::optional<Error> error;
  /// Tokens that have passed.
  size_t passed = 0;
};

/// Runs whose tokens pass the weights together, as far as batches are long enough; each of another session. One that fails
/// leaves the others alone, and what a run gives does not depend on them.
struct Job {
  std::vector<Run> runs;
  /// Called once, on the engine's thread.
  std::function<void(std::vector<Run>& runs)> done;
};

class Engine {
 public:
  /// Maps or reads the file of `size` bytes behind `fd` (which may be closed afterwards) and starts the threads.
  /// Blocks for as long as reading takes.
  /// @throws Error NOT_READABLE, MEMORY, LIMIT_EXCEEDED (threads, mappings), INTERNAL (a program that contradicts itself or
  /// the file)
  static std::shared_ptr<Engine> open(int fd, uint64_t size, Program program, const EngineOptions& options);

  /// Cancels what runs, waits for it, and stops the threads.
  virtual ~Engine() = default;
  /// @throws Error MEMORY
  virtual std::shared_ptr<Session> create_session() = 0;
  /// A second sequence with the tokens of `session` so far, between its jobs; pages of the KV cache are shared until one of
  /// the two appends to them. @throws Error MEMORY, UNSUPPORTED if some are on disk
  virtual std::shared_ptr<Session> fork(const Session& session) = 0;
  /// Queues a job; jobs run in order. Jobs of one session must not overlap (the caller sees to that).
  /// @throws Error MEMORY, and then `done` is not called
  virtual void submit(Job job) = 0;
  /// @throws Error MEMORY
  virtual EngineStats stats() const = 0;
  /// What was recorded since the last call, of batches that ran to their end.
  virtual std::vector<Routing> take_routings() = 0;
};

}  // namespace cflow
