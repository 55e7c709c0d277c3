#include "engine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "../base/memory.h"
#include "../tiers/kv_cache.h"
#include "../tiers/kv_spill.h"
#include "executor.h"
#include "program_check.h"
#include "storage.h"

namespace cflow {

namespace {

/// Logits of a batch are [tokens, vocabulary]; with all of them asked for, batches are shorter.
constexpr uint32_t kMostLogitRows = 64;

/// [phase][]: the caches that a token attends over.
std::vector<std::vector<uint32_t>> attended_caches(const Program& program) {
  std::vector<std::vector<uint32_t>> attended;
  for (const Phase& phase : program.phases) {
    std::vector<uint32_t>& caches = attended.emplace_back();
    for (const uint32_t step : phase.parallel) {
      if (const auto* attend = std::get_if<step::Attend>(&program.steps[step])) caches.push_back(attend->cache);
    }
  }
  return attended;
}

class SessionState final : public Session {
 public:
  SessionState(const Program& program, const EngineOptions& options) {
    for (const CacheShape& shape : program.caches) caches.emplace_back(shape, options.cache, options.max_batch);
    if (options.spill.cache_bytes) {
      spill = std::make_unique<KvSpill>(caches, attended_caches(program), program.context_length, options.spill);
    }
  }

  void cancel() override { cancelled.store(true, std::memory_order_relaxed); }
  void resume() override { cancelled.store(false, std::memory_order_relaxed); }
  uint64_t cache_bytes() const override { return bytes.load(std::memory_order_relaxed); }

  uint64_t truncate(uint64_t to) override {
    if (to > position) {
      throw Error("USAGE", "position " + std::to_string(to) + " is beyond the " + std::to_string(position) +
                               " tokens that have passed");
    }
    uint64_t reached = spill ? spill->reachable(to) : to;
    const bool reaches = std::all_of(caches.begin(), caches.end(), [&](const KvCache& c) { return c.reaches(reached); });
    if (!reaches) reached = 0;
    if (spill) spill->truncate(reached);
    for (KvCache& cache : caches) cache.truncate(reached);
    position = reached;
    resume();
    count_bytes();
    return reached;
  }

  /// The most of `count` tokens whose KV cache fits its memory limit, at least 1.
  uint32_t fitting(uint32_t count) const {
    while (spill && count > 1 && !spill->fits(position, position + count)) count /= 2;
    return count;
  }

  /// Room in all caches for so many tokens. @throws Error MEMORY, and then none has grown; WRITE_FAILED
  void reserve(uint32_t count) {
    const uint64_t positions = position + count;
    if (spill) spill->begin(position, positions);
    uint64_t needed = 0;
    for (const KvCache& cache : caches) needed += cache.bytes_for(position, positions);
    if (needed) {
      require_memory(needed, "key/value caches");
      grow(positions);
    }
    for (KvCache& cache : caches) cache.begin(positions);
    count_bytes();
  }

  void count_bytes() {
    uint64_t used = spill ? spill->bytes() : 0;
    for (const KvCache& cache : caches) used += cache.bytes();
    bytes.store(used, std::memory_order_relaxed);
  }

  /// Since the last call.
  SpillStats take_spill_stats() {
    if (!spill) return {};
    const SpillStats now = spill->stats();
    return now - std::exchange(noted, now);
  }

  /// All caches or none.
  void grow(uint64_t positions) {
    std::vector<size_t> before;
    for (const KvCache& cache : caches) before.push_back(cache.pages());
    try {
      for (KvCache& cache : caches) cache.reserve(position, positions);
    } catch (...) {
      for (size_t i = 0; i < caches.size(); i++) caches[i].shrink(before[i]);
      throw;
    }
  }

  std::vector<KvCache> caches;
  /// Of the next token.
  uint64_t position = 0;
  std::atomic<bool> cancelled{false};
  std::atomic<uint64_t> bytes{0};
  SpillStats noted;
  /// Last: it reads and writes the caches. Null unless their memory is limited.
  std::unique_ptr<KvSpill> spill;
};

class EngineImpl final : public Engine {
 public:
  EngineImpl(int fd, uint64_t size, Program program, const EngineOptions& options)
      : options_(options),
        storage_(fd, size, program, options),
        executor_(std::move(program), storage_, options),
        tiers_(storage_.stats()),
        leader_([this] { lead(); }) {}

  ~EngineImpl() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      if (running_) {
        for (const Run& run : running_->runs) run.session->cancel();
      }
    }
    wake_.notify_all();
    leader_.join();
  }

  std::shared_ptr<Session> create_session() override {
    return with_typed_errors([&] { return std::make_shared<SessionState>(executor_.program(), options_); });
  }

  std::shared_ptr<Session> fork(const Session& session) override {
    return with_typed_errors([&] {
      const auto& from = static_cast<const SessionState&>(session);
      if (from.spill && from.spill->spilled()) {
        throw Error("UNSUPPORTED", "a session whose KV cache is on disk in part cannot be forked",
                    "allow more memory for keys and values, or pass its tokens to a new session");
      }
      auto fork = std::make_shared<SessionState>(executor_.program(), options_);
      fork->caches = from.caches;
      fork->position = from.position;
      fork->count_bytes();
      return fork;
    });
  }

  void submit(Job job) override {
    with_typed_errors([&] {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(job));
    });
    wake_.notify_one();
  }

  EngineStats stats() const override {
    return with_typed_errors([&] { return figures(); });
  }

  std::vector<Routing> take_routings() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(routings_, {});
  }

 private:
  EngineStats figures() const {
    EngineStats stats;
    stats.weight_bytes = storage_.weights().size();
    stats.resident_bytes = storage_.weights().resident_bytes();
    stats.scratch_bytes = executor_.scratch_bytes();
    stats.barriers_per_token = executor_.barriers();
    stats.shared_phases = executor_.shared_phases();
    stats.bytes_read = executor_.bytes_read();
    const std::lock_guard lock(mutex_);
    stats.profile = profile_;
    stats.tiers = tiers_;
    return stats;
  }

  static SessionState& state_of(const Run& run) { return static_cast<SessionState&>(*run.session); }

  /// The engine's thread: it takes jobs in order, and computes as the first of the team.
  void lead() {
    Job job;
    while (next(job)) {
      if (closing_) fail(job, *closed_);
      else pass(job);
      // Before the caller hears of it: it may close the sessions.
      if (const auto unnoted = release(job)) fail(job, *unnoted);
      job.done(job.runs);
      job = {};
    }
  }

  bool next(Job& job) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return false;
    job = std::move(queue_.front());
    queue_.pop_front();
    running_ = &job;
    return true;
  }

  /// Of the runs that have none yet.
  static void fail(Job& job, const Error& error) {
    for (Run& run : job.runs) {
      if (!run.error) run.error = error;
    }
  }

  /// Notes the figures of a job. An error: there is no memory for them.
  std::optional<Error> release(const Job& job) {
    const std::lock_guard lock(mutex_);
    running_ = nullptr;
    try {
      if (options_.profile) profile_ = executor_.profile();
      const SpillStats spill = tiers_.spill;
      tiers_ = storage_.stats();
      tiers_.spill = spill;
      for (const Run& run : job.runs) tiers_.spill += state_of(run).take_spill_stats();
      std::vector<Routing> chosen = executor_.take_routings();
      routings_.reserve(routings_.size() + chosen.size());
      std::move(chosen.begin(), chosen.end(), std::back_inserter(routings_));
      return std::nullopt;
    } catch (...) {
      return current_error();
    }
  }

  void pass(Job& job) {
    try {
      for (Run& run : job.runs) attempt(run, [&] { check(run); });
      while (pass_batch(job)) {
      }
    } catch (...) {
      fail(job, current_error());
    }
  }

  /// Whatever `body` throws is the error of the run. Whether it threw nothing.
  template <typename Body>
  static bool attempt(Run& run, Body&& body) {
    try {
      body();
      return true;
    } catch (...) {
      run.error = current_error();
      return false;
    }
  }

  /// Passes what is left of the runs, as many tokens as a batch may have. False if nothing is left.
  bool pass_batch(Job& job) {
    pieces_.clear();
    members_.clear();
    uint32_t room = options_.max_batch;
    uint32_t logit_room = kMostLogitRows;
    for (Run& run : job.runs) {
      const auto left = static_cast<uint32_t>(run.error ? 0 : run.ids.size() - run.passed);
      const uint32_t most = std::min({left, room, run.logits == Logits::all ? logit_room : room});
      if (most == 0) continue;
      SessionState& session = state_of(run);
      const uint32_t count = session.fitting(most);
      if (!attempt(run, [&] { begin(session, count); })) continue;
      room -= count;
      if (run.logits == Logits::all) logit_room -= count;
      pieces_.push_back(piece_of(run, count));
      members_.push_back(&run);
    }
    if (pieces_.empty()) return false;
    pass_pieces(pieces_, members_.data());
    return true;
  }

  static void begin(SessionState& session, uint32_t count) {
    if (session.cancelled.load()) throw Error("INTERRUPTED", "interrupted");
    session.reserve(count);
  }

  static Piece piece_of(const Run& run, uint32_t count) {
    SessionState& session = state_of(run);
    const bool last = run.passed + count == run.ids.size();
    const Logits logits = run.logits == Logits::last && !last ? Logits::none : run.logits;
    const Precision precision = run.ids.size() == 1 ? Precision::fine : Precision::coarse;
    return {std::span(run.ids).subspan(run.passed, count), session.position, precision, logits, &session.caches,
            session.spill.get(), &session.cancelled};
  }

  /// @param runs of the pieces
  void pass_pieces(std::span<const Piece> pieces, Run* const* runs) {
    try {
      executor_.run(pieces);
    } catch (...) {
      if (pieces.size() == 1) {
        runs[0]->error = current_error();
        return;
      }
      // No piece has passed, and who is to blame is not known: one after the other, the rest pass.
      for (size_t i = 0; i < pieces.size(); i++) {
        const auto count = static_cast<uint32_t>(pieces[i].ids.size());
        if (attempt(*runs[i], [&] { begin(state_of(*runs[i]), count); })) pass_pieces(pieces.subspan(i, 1), runs + i);
      }
      return;
    }
    for (size_t i = 0; i < pieces.size(); i++) {
      if (auto failure = executor_.failure(i)) runs[i]->error = std::move(failure);
      else take_output(*runs[i], pieces[i], i);
    }
  }

  void take_output(Run& run, const Piece& piece, size_t index) {
    const size_t length = executor_.program().buffers[executor_.program().output];
    const size_t rows = piece.logits == Logits::none ? 0 : piece.logits == Logits::all ? piece.ids.size() : 1;
    float* out = run.output + (piece.logits == Logits::all ? run.passed * length : 0);
    for (uint32_t i = 0; i < rows; i++) std::copy_n(executor_.output(index, i), length, out + i * length);
    run.passed += piece.ids.size();
    state_of(run).position += piece.ids.size();
  }

  void check(const Run& run) const {
    const Program& program = executor_.program();
    for (const int32_t id : run.ids) {
      if (id >= 0 && static_cast<uint32_t>(id) < program.vocab_size) continue;
      throw Error("USAGE", "token id " + std::to_string(id) + " is not one of the " + std::to_string(program.vocab_size) +
                               " of the model");
    }
    const uint64_t position = state_of(run).position;
    if (run.ids.size() <= program.context_length && position <= program.context_length - run.ids.size()) return;
    throw Error("LIMIT_EXCEEDED", std::to_string(position + run.ids.size()) + " tokens do not fit the context of " +
                                      std::to_string(program.context_length));
  }

  const EngineOptions options_;
  const std::optional<Error> closed_{Error("INTERRUPTED", "the model was closed")};
  Storage storage_;
  Executor executor_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  const Job* running_ = nullptr;
  /// Of the batch that is made.
  std::vector<Piece> pieces_;
  std::vector<Run*> members_;
  std::atomic<bool> closing_{false};
  std::vector<ProfileEntry> profile_;
  /// As of the last job.
  TierStats tiers_;
  std::vector<Routing> routings_;
  /// Last: it uses everything above.
  std::thread leader_;
};

}  // namespace

std::shared_ptr<Engine> Engine::open(int fd, uint64_t size, Program program, const EngineOptions& options) {
  if (options.threads == 0 || options.max_batch == 0 || !options.kernels) {
    throw Error("INTERNAL", "an engine needs threads, a batch and kernels");
  }
  return with_typed_errors([&] {
    check_program(program, options);
    return std::make_shared<EngineImpl>(fd, size, std::move(program), options);
  });
}

}  // namespace cflow
