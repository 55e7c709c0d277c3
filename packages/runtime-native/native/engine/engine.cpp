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
      if (running_) running_->cancel();
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

  void submit(std::shared_ptr<Session> session, Job job) override {
    with_typed_errors([&] {
      const std::lock_guard lock(mutex_);
      queue_.push_back({std::static_pointer_cast<SessionState>(std::move(session)), std::move(job)});
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
  struct Entry {
    std::shared_ptr<SessionState> session;
    Job job;
  };

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

  /// The engine's thread: it takes jobs in order, and computes as the first of the team.
  void lead() {
    Entry entry;
    while (next(entry)) {
      std::optional<Error> error = closing_ ? closed_ : attempt(entry);
      // Before the caller hears of it: it may close the session.
      std::optional<Error> unnoted = release(entry);
      if (!error) error = std::move(unnoted);
      entry.job.done(error ? &*error : nullptr);
      entry = {};
    }
  }

  bool next(Entry& entry) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return false;
    entry = std::move(queue_.front());
    queue_.pop_front();
    running_ = entry.session.get();
    return true;
  }

  std::optional<Error> attempt(Entry& entry) {
    try {
      run(*entry.session, entry.job);
      return std::nullopt;
    } catch (...) {
      return current_error();
    }
  }

  /// Notes the figures of a job. An error: there is no memory for them.
  std::optional<Error> release(const Entry& entry) {
    const std::lock_guard lock(mutex_);
    running_ = nullptr;
    try {
      if (options_.profile) profile_ = executor_.profile();
      const SpillStats spill = tiers_.spill;
      tiers_ = storage_.stats();
      (tiers_.spill = spill) += entry.session->take_spill_stats();
      std::vector<Routing> chosen = executor_.take_routings();
      routings_.reserve(routings_.size() + chosen.size());
      std::move(chosen.begin(), chosen.end(), std::back_inserter(routings_));
      return std::nullopt;
    } catch (...) {
      return current_error();
    }
  }

  void run(SessionState& session, const Job& job) {
    check(session, job);
    const uint32_t most = job.all_logits ? std::min(options_.max_batch, kMostLogitRows) : options_.max_batch;
    const size_t length = executor_.program().buffers[executor_.program().output];
    for (size_t done = 0; done < job.ids.size();) {
      const uint32_t count = session.fitting(static_cast<uint32_t>(std::min<size_t>(most, job.ids.size() - done)));
      const bool last = done + count == job.ids.size();
      session.reserve(count);
      const Tokens tokens{job.ids.data() + done, count, session.position, job.all_logits};
      executor_.run(tokens, session.caches, session.spill.get(), session.cancelled);
      session.position += count;
      for (uint32_t i = job.all_logits ? 0 : count - 1; i < count && (job.all_logits || last); i++) {
        float* out = job.logits + (job.all_logits ? (done + i) * length : 0);
        std::copy_n(executor_.output(i), length, out);
      }
      done += count;
    }
  }

  void check(const SessionState& session, const Job& job) const {
    const Program& program = executor_.program();
    for (const int32_t id : job.ids) {
      if (id >= 0 && static_cast<uint32_t>(id) < program.vocab_size) continue;
      throw Error("USAGE", "token id " + std::to_string(id) + " is not one of the " + std::to_string(program.vocab_size) +
                               " of the model");
    }
    if (job.ids.size() <= program.context_length && session.position <= program.context_length - job.ids.size()) return;
    throw Error("LIMIT_EXCEEDED", std::to_string(session.position + job.ids.size()) + " tokens do not fit the context of " +
                                      std::to_string(program.context_length));
  }

  const EngineOptions options_;
  const std::optional<Error> closed_{Error("INTERRUPTED", "the model was closed")};
  Storage storage_;
  Executor executor_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Entry> queue_;
  SessionState* running_ = nullptr;
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
