#include "executor.h"

#include <algorithm>
#include <string>

namespace cflow {

namespace {

/// From so many tokens on, the steps between matrices are shared out by token, at the price of one more barrier.
constexpr uint32_t kSharedTokens = 4;

}  // namespace

void WorkShares::reset(uint32_t units) {
  const auto threads = static_cast<uint32_t>(shares_.size());
  uint32_t from = 0;
  for (uint32_t i = 0; i < threads; i++) {
    const auto end = static_cast<uint32_t>(uint64_t{units} * (i + 1) / threads);
    shares_[i].next.store(from, std::memory_order_relaxed);
    shares_[i].end = end;
    from = end;
  }
}

void WorkShares::reset_waiting(uint32_t first, uint32_t end) {
  waiting_.next.store(first, std::memory_order_relaxed);
  waiting_.end = end;
}

bool WorkShares::claim(unsigned thread, uint32_t& unit) {
  const size_t threads = shares_.size();
  for (size_t i = 0; i < threads; i++) {
    Share& share = shares_[(thread + i) % threads];
    if (share.next.load(std::memory_order_relaxed) >= share.end) continue;
    unit = share.next.fetch_add(1, std::memory_order_relaxed);
    if (unit < share.end) return true;
  }
  unit = waiting_.next.fetch_add(1, std::memory_order_relaxed);
  return unit < waiting_.end;
}

Executor::Executor(Program program, Storage& storage, const EngineOptions& options)
    : program_(std::move(program)),
      storage_(storage),
      options_(options),
      buffers_(program_, *options.kernels, options.arithmetic),
      context_{*options.kernels, storage, program_.dtype, options.cache, options.spill.cache_bytes > 0, buffers_,
               options.record_routings ? &routings_ : nullptr},
      profiles_(options.threads),
      shares_(options.threads),
      team_(options.threads) {
  for (const Phase& phase : program_.phases) {
    PreparedPhase prepared;
    for (const uint32_t i : phase.parallel) prepared.parallel.push_back(make_parallel(program_.steps[i], program_, context_));
    std::stable_partition(prepared.parallel.begin(), prepared.parallel.end(), [](const auto& op) { return !op->waits(); });
    for (const uint32_t i : phase.transfers) {
      prepared.transfers.push_back(make_transfer(program_.steps[i], program_, context_));
    }
    for (const uint32_t i : phase.serial) prepared.serial.push_back(make_serial(program_.steps[i], program_, context_));
    prepared.ends.resize(prepared.parallel.size());
    phases_.push_back(std::move(prepared));
  }
  for (unsigned i = 0; i < options.threads; i++) scratch_.push_back(std::make_unique<Scratch>());
  if (options.profile) name_profiles();
}

/// All entries exist before the first batch: while threads run one, nothing may throw outside of `guarded`.
void Executor::name_profiles() {
  for (Profile& profile : profiles_) {
    for (const char* name : {kWait, kTransfer, kPrepare}) profile[name];
    for (const PreparedPhase& phase : phases_) {
      for (const auto& op : phase.parallel) profile[op->name()];
      for (const auto& op : phase.serial) profile[op->name()];
    }
  }
}

void Executor::run(const Tokens& tokens, std::vector<KvCache>& caches, KvSpill* spill,
                   const std::atomic<bool>& cancelled) {
  head_first_ = tokens.all_logits ? 0 : tokens.count - 1;
  buffers_.reserve(tokens.count, head_first_);
  scratch_bytes_.store(buffers_.bytes(), std::memory_order_relaxed);
  buffers_.fill_ropes(program_, tokens.start, tokens.count);
  const size_t recorded = routings_.size();
  faults_.clear();
  failure_ = nullptr;
  stopping_ = false;
  cancelled_ = &cancelled;
  batch_ = {tokens.ids, tokens.start, 0, tokens.count, &caches, spill, &faults_};
  storage_.begin(tokens.count);
  prepare(0, 0);
  // What comes before the first matrix needs nobody else, unless there are many tokens.
  const bool opening = phases_[0].parallel.empty() && tokens.count < kSharedTokens;
  if (opening) finish_phase(0, true, 0);
  team_.run([this, opening](unsigned thread) { work(opening ? 1 : 0, thread); });
  try {
    throw_failure();
  } catch (...) {
    // What it chose is of tokens that no session has passed.
    routings_.erase(routings_.begin() + static_cast<std::ptrdiff_t>(recorded), routings_.end());
    throw;
  }
}

uint64_t Executor::barriers() const {
  return phases_.size() - (phases_[0].parallel.empty() ? 1 : 0);
}

void Executor::work(size_t first_phase, unsigned thread) {
  for (size_t s = first_phase; s < phases_.size() && !stopping_; s++) {
    PreparedPhase& phase = phases_[s];
    guarded([&] { run_units(phase, thread); });
    // The meeting of the threads is the one place where anything shared changes: `stopping_`, the batch, the shares.
    const bool share_tokens = batch_.tokens() >= kSharedTokens && team_.size() > 1;
    if (share_tokens) {
      const auto share = [&](unsigned i) {
        return batch_.first + static_cast<uint32_t>(uint64_t{batch_.tokens()} * i / team_.size());
      };
      const uint32_t first = share(thread);
      const uint32_t end = share(thread + 1);
      team_.meet([] {});
      guarded([&] { run_serial(phase, first, end, thread); });
    }
    timed(thread, kWait, 0, [&] { team_.meet([&] { finish_phase(s, !share_tokens, thread); }); });
  }
}

/// Whatever a step throws ends the batch at the next meeting; out of a thread's body it would end the process.
template <typename Body>
void Executor::guarded(Body&& body) {
  try {
    body();
  } catch (...) {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

/// Run by the last thread to arrive; the others wait, so it may change what they share.
void Executor::finish_phase(size_t phase, bool serial, unsigned thread) {
  guarded([&] {
    if (serial) run_serial(phases_[phase], batch_.first, batch_.end, thread);
    timed(thread, kTransfer, 0, [&] {
      for (const auto& op : phases_[phase].parallel) op->finish(batch_);
      for (const auto& op : phases_[phase].transfers) op->run(batch_);
    });
    if (phase + 1 < phases_.size()) prepare(phase + 1, thread);
  });
  const bool broken = failure_ || storage_.weights().faulted() || faults_.any();
  if (broken || cancelled_->load(std::memory_order_relaxed)) stopping_ = true;
}

void Executor::prepare(size_t index, unsigned thread) {
  PreparedPhase& phase = phases_[index];
  batch_.first = index >= program_.head_phase ? head_first_ : 0;
  uint32_t units = 0;
  uint32_t waiting = 0;
  uint64_t bytes = 0;
  timed(thread, kPrepare, 0, [&] {
    for (size_t i = 0; i < phase.parallel.size(); i++) {
      const uint32_t own = phase.parallel[i]->prepare(batch_);
      units += own;
      if (phase.parallel[i]->waits()) waiting += own;
      bytes += phase.parallel[i]->bytes();
      phase.ends[i] = units;
    }
  });
  bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
  shares_.reset(units - waiting);
  shares_.reset_waiting(units - waiting, units);
}

void Executor::run_units(PreparedPhase& phase, unsigned thread) {
  uint32_t unit = 0;
  while (shares_.claim(thread, unit)) {
    const auto op = static_cast<size_t>(std::upper_bound(phase.ends.begin(), phase.ends.end(), unit) - phase.ends.begin());
    const uint32_t begin = op ? phase.ends[op - 1] : 0;
    const ParallelOp& work = *phase.parallel[op];
    const uint64_t bytes = options_.profile ? work.bytes() / (phase.ends[op] - begin) : 0;
    timed(thread, work.name(), bytes, [&] { work.run(batch_, unit - begin, *scratch_[thread]); });
  }
}

void Executor::run_serial(PreparedPhase& phase, uint32_t first, uint32_t end, unsigned thread) {
  for (const auto& op : phase.serial) {
    timed(thread, op->name(), 0, [&] { op->run(batch_, first, end); });
  }
}

template <typename Body>
void Executor::timed(unsigned thread, const char* name, uint64_t bytes, Body&& body) {
  if (!options_.profile) return body();
  const auto start = Clock::now();
  body();
  ProfileEntry& entry = profiles_[thread].find(name)->second;
  entry.calls++;
  entry.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  entry.bytes += bytes;
}

std::vector<ProfileEntry> Executor::profile() const {
  std::map<std::string, ProfileEntry> sums;
  for (const Profile& profile : profiles_) {
    for (const auto& [name, entry] : profile) {
      if (entry.calls == 0) continue;
      ProfileEntry& sum = sums[name];
      sum.name = name;
      sum.calls += entry.calls;
      sum.seconds += entry.seconds;
      sum.bytes += entry.bytes;
    }
  }
  std::vector<ProfileEntry> entries;
  for (auto& [name, entry] : sums) entries.push_back(std::move(entry));
  return entries;
}

void Executor::throw_failure() {
  if (failure_) std::rethrow_exception(failure_);
  if (storage_.weights().faulted() || !storage_.weights().whole()) {
    throw Error("NOT_READABLE", "the file changed while it was in use, or its disk failed",
                "copy or convert it again, and open it anew");
  }
  if (faults_.any()) {
    const std::string at = " at position " + std::to_string(faults_.position());
    if (faults_.fault() == Fault::cache) {
      throw Error("LIMIT_EXCEEDED", "a key or value" + at + " is over 65504, the largest f16", "use an f32 cache: --cache f32");
    }
    throw Error("NONFINITE_WEIGHT", "router logits are NaN" + at,
                "a weight is not finite; verify the file or convert it again");
  }
  if (cancelled_->load()) throw Error("INTERRUPTED", "interrupted");
}

}  // namespace cflow
