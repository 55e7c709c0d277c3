#include "executor.h"

#include <algorithm>
#include <string>

namespace cflow {

namespace {

/// From so many tokens on, threads share the serial steps by token.
constexpr uint32_t kSharedTokens = 4;

/// Work of a phase, in bytes read and on average, from which on threads share the phases of a batch: about 40 µs of one
/// thread. It is an average, as helpers fall asleep in phases that they do not share, and waking them costs more than a short
/// phase does.
constexpr uint64_t kSharedWork = 512 << 10;

/// Work of one serial step with one token, likewise.
constexpr uint64_t kTokenWork = 4096;

}  // namespace

Executor::Executor(Program program, Storage& storage, const EngineOptions& options)
    : program_(std::move(program)),
      storage_(storage),
      options_(options),
      buffers_(program_, *options.kernels, options.arithmetic),
      context_{*options.kernels, storage, program_.dtype, options.cache, options.spill.cache_bytes > 0, buffers_,
               options.record_routings ? &routings_ : nullptr},
      profiles_(options.threads),
      shares_(options.threads),
      team_(options.threads, [this](unsigned thread) { run_units(thread); }) {
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
  shared_phases_.store(barriers(), std::memory_order_relaxed);
  for (unsigned i = 0; i < options.threads; i++) scratch_.push_back(std::make_unique<Scratch>());
  if (options.profile) name_profiles();
}

/// All entries exist before the first batch: threads that run one must not throw outside of `guarded`.
void Executor::name_profiles() {
  for (Profile& profile : profiles_) {
    for (const char* name : {kWait, kTransfer, kPrepare}) profile[name];
    for (const PreparedPhase& phase : phases_) {
      for (const auto& op : phase.parallel) profile[op->name()];
      for (const auto& op : phase.serial) profile[op->name()];
    }
  }
}

void Executor::run(std::span<const Piece> pieces) {
  rows_.lay_out(pieces);
  buffers_.reserve(rows_.count(), rows_.head());
  scratch_bytes_.store(buffers_.bytes(), std::memory_order_relaxed);
  buffers_.fill_ropes(program_, rows_);
  const size_t recorded = routings_.size();
  while (faults_.size() < pieces.size()) faults_.emplace_back();
  for (Faults& faults : faults_) faults.clear();
  failure_ = nullptr;
  stopping_ = false;
  work_ = worked_phases_ = 0;
  batch_ = {pieces, &rows_, &faults_, 0, rows_.fine(), rows_.count()};
  storage_.begin(rows_.count());
  uint64_t shared = 0;
  for (size_t i = 0; i < phases_.size() && !stopping_; i++) {
    run_phase(i);
    shared += phases_[i].shared;
  }
  storage_.end();
  if (rows_.count() == 1) shared_phases_.store(shared, std::memory_order_relaxed);
  // What was chosen for tokens that no session has passed is forgotten.
  const auto forget = [&](auto&& holds) {
    const auto from = routings_.begin() + static_cast<std::ptrdiff_t>(recorded);
    routings_.erase(std::remove_if(from, routings_.end(), holds), routings_.end());
  };
  try {
    throw_failure();
  } catch (...) {
    forget([](const Routing&) { return true; });
    throw;
  }
  forget([this](const Routing& routing) { return failure(routing.piece).has_value(); });
}

std::optional<Error> Executor::failure(size_t piece) const {
  const Faults& faults = faults_[piece];
  if (faults.any()) {
    const std::string at = " at position " + std::to_string(faults.position());
    if (faults.fault() == Fault::cache) {
      return Error("LIMIT_EXCEEDED", "a key or value" + at + " is over 65504, the largest f16", "use an f32 cache: --cache f32");
    }
    return Error("NONFINITE_WEIGHT", "router logits are NaN" + at,
                 "a weight is not finite; verify the file or convert it again");
  }
  if (batch_.pieces[piece].cancelled->load(std::memory_order_relaxed)) return Error("INTERRUPTED", "interrupted");
  return std::nullopt;
}

/// Whether no piece can be of use any more.
bool Executor::hopeless() const {
  for (size_t i = 0; i < batch_.pieces.size(); i++) {
    if (!faults_[i].any() && !batch_.pieces[i].cancelled->load(std::memory_order_relaxed)) return false;
  }
  return true;
}

uint64_t Executor::barriers() const {
  return phases_.size() - (phases_[0].parallel.empty() ? 1 : 0);
}

/// One thread leads: only it changes what threads share, and only while no unit is offered.
void Executor::run_phase(size_t index) {
  phase_ = &phases_[index];
  guarded([&] { prepare(index); });
  if (failure_) {
    stopping_ = true;
    return;
  }
  const bool shares_tokens = phase_->shared && batch_.tokens() >= kSharedTokens;
  if (!phase_->ends.empty()) run_section(phase_->ends.back(), phase_->waiting, phase_->shared);
  if (shares_tokens) {
    slices_ = true;
    run_section(team_.size(), 0, true);
    slices_ = false;
  }
  finish_phase(!shares_tokens);
}

void Executor::prepare(size_t index) {
  PreparedPhase& phase = phases_[index];
  const bool head = index >= program_.head_phase;
  batch_.first = head ? rows_.head() : 0;
  batch_.fine = head ? rows_.head_fine() : rows_.fine();
  uint32_t units = 0;
  uint64_t bytes = 0;
  uint64_t work = 0;
  phase.waiting = 0;
  phase.shared = false;
  timed(0, kPrepare, 0, [&] {
    for (size_t i = 0; i < phase.parallel.size(); i++) {
      ParallelOp& op = *phase.parallel[i];
      // Nobody may want logits.
      const uint32_t own = batch_.tokens() ? op.prepare(batch_) : 0;
      units += own;
      if (op.waits()) phase.waiting += own;
      bytes += own ? op.bytes() : 0;
      work += own ? op.work(batch_) : 0;
      phase.ends[i] = units;
    }
  });
  bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
  const bool slices = batch_.tokens() >= kSharedTokens;
  if (slices) work += phase.serial.size() * batch_.tokens() * kTokenWork;
  if (!units && !slices) return;
  work_ += work;
  const bool long_enough = work_ >= ++worked_phases_ * kSharedWork;
  phase.shared = team_.size() > 1 && (options_.share_short || phase.waiting || long_enough);
}

void Executor::run_section(uint32_t units, uint32_t waiting, bool shared) {
  shares_.open(units, waiting);
  if (shared) team_.call();
  run_units(0);
  timed(0, kWait, 0, [&] { shares_.wait(team_.spins()); });
}

void Executor::run_units(unsigned thread) {
  uint32_t unit = 0;
  uint32_t ran = 0;
  for (; shares_.claim(thread, unit); ran++) {
    guarded([&] { slices_ ? run_slice(unit, thread) : run_unit(unit, thread); });
  }
  shares_.finish(ran);
}

void Executor::run_unit(uint32_t unit, unsigned thread) {
  const std::vector<uint32_t>& ends = phase_->ends;
  const auto op = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), unit) - ends.begin());
  const uint32_t begin = op ? ends[op - 1] : 0;
  const ParallelOp& work = *phase_->parallel[op];
  const uint64_t bytes = options_.profile ? work.bytes() / (ends[op] - begin) : 0;
  timed(thread, work.name(), bytes, [&] { work.run(batch_, unit - begin, *scratch_[thread]); });
}

void Executor::run_slice(uint32_t slice, unsigned thread) {
  const auto start = [&](uint32_t i) {
    return batch_.first + static_cast<uint32_t>(uint64_t{batch_.tokens()} * i / team_.size());
  };
  run_serial(start(slice), start(slice + 1), thread);
}

void Executor::run_serial(uint32_t first, uint32_t end, unsigned thread) {
  for (const auto& op : phase_->serial) {
    timed(thread, op->name(), 0, [&] { op->run(batch_, first, end); });
  }
}

void Executor::finish_phase(bool serial) {
  guarded([&] {
    if (serial) run_serial(batch_.first, batch_.end, 0);
    timed(0, kTransfer, 0, [&] {
      for (const auto& op : phase_->parallel) op->finish(batch_);
      for (const auto& op : phase_->transfers) op->run(batch_);
    });
  });
  if (failure_ || storage_.weights().faulted() || hopeless()) stopping_ = true;
}

/// A failure of any thread ends the batch behind the phase; thrown out of a helper it would end the process.
template <typename Body>
void Executor::guarded(Body&& body) {
  try {
    body();
  } catch (...) {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::current_exception();
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
}

}  // namespace cflow
