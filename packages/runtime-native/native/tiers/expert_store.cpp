#include "expert_store.h"

#include <algorithm>
#include <string>

namespace cflow {

namespace {

std::vector<uint32_t> first_keys(const std::vector<std::vector<FetchRegion>>& banks) {
  std::vector<uint32_t> keys{0};
  for (const auto& bank : banks) keys.push_back(keys.back() + static_cast<uint32_t>(bank.size()));
  return keys;
}

uint64_t largest(const std::vector<std::vector<FetchRegion>>& banks) {
  uint64_t most = 0;
  for (const auto& bank : banks) {
    for (const FetchRegion& region : bank) most = std::max(most, region.length);
  }
  return most;
}

bool is_among(uint32_t expert, std::span<const ExpertUse> uses) {
  return std::any_of(uses.begin(), uses.end(), [&](const ExpertUse& use) { return use.expert == expert; });
}

/// A read in vain takes as long as one that is hidden saves.
constexpr double kWorthwhile = 0.5;
/// Weight of the latest guess in the precision of its rank.
constexpr double kLatest = 0.02;

}  // namespace

ExpertStore::ExpertStore(IoQueue& io, std::vector<std::vector<FetchRegion>> banks, uint32_t slots, double half_life)
    : banks_(std::move(banks)),
      first_key_(first_keys(banks_)),
      cache_(first_key_, std::min(slots, first_key_.back()), half_life, ExpertCache::kRepeat),
      slots_(io, cache_.slots(), largest(banks_), "the cache of experts"),
      holds_(slots_.count(), Hold::none),
      used_(banks_.size()),
      predicted_(banks_.size()),
      guesses_(banks_.size()) {
  stats_.slots = slots_.count();
  stats_.slot_bytes = slots_.bytes();
}

void ExpertStore::check(uint32_t bank, size_t experts, uint64_t bytes) const {
  const bool fits = bank < banks_.size() && banks_[bank].size() == experts &&
                    std::all_of(banks_[bank].begin(), banks_[bank].end(),
                                [bytes](const FetchRegion& region) { return region.length >= bytes; });
  if (!fits) throw Error("INTERNAL", "experts do not fit bank " + std::to_string(bank));
}

void ExpertStore::begin(uint32_t tokens) {
  cache_.pass(tokens);
  for (auto& list : used_) list.clear();
  for (auto& list : predicted_) list.clear();
  for (auto& list : guesses_) list.clear();
  for (uint32_t slot = 0; slot < slots_.count(); slot++) {
    // Held only after a batch that was broken off.
    if (holds_[slot] != Hold::none) drop(slot);
    if (!slots_.pending(slot) && slots_.failed(slot)) cache_.clear(slot);
  }
}

void ExpertStore::call(uint32_t bank, std::span<const ExpertUse> chosen) {
  judge_guesses(bank, chosen);
  drop_predictions(bank, chosen);
  // Those in memory first: a slot that is held is not given to another of them.
  std::vector<uint32_t> missing;
  for (const auto& [expert, count] : chosen) {
    cache_.touch(key(bank, expert), count);
    const uint32_t slot = cache_.slot_of(key(bank, expert));
    if (slot == ExpertCache::kNone) {
      missing.push_back(expert);
      continue;
    }
    const bool predicted = holds_[slot] == Hold::predicted;
    (predicted ? stats_.predicted : stats_.hits)++;
    use(bank, slot);
    if (slots_.pending(slot)) slots_.promote(slot);
    else if (slots_.failed(slot)) read(bank, expert, slot, IoPriority::needed);
  }
  for (const uint32_t expert : missing) {
    // A router that met NaN may name one twice; the batch fails, and the cache must not.
    if (cache_.slot_of(key(bank, expert)) != ExpertCache::kNone) continue;
    uint32_t slot;
    while ((slot = admit(bank, expert, IoPriority::needed)) == ExpertCache::kNone) make_room();
    stats_.misses++;
    use(bank, slot);
  }
}

void ExpertStore::make_room() {
  for (auto& slots : predicted_) {
    if (slots.empty()) continue;
    drop(slots.back());
    slots.pop_back();
    return;
  }
  for (uint32_t slot = 0; slot < slots_.count(); slot++) {
    if (holds_[slot] != Hold::none) continue;
    stalls_.time([&] { slots_.settle(slot); });
    return;
  }
  throw Error("INTERNAL", std::to_string(slots_.count()) + " slots are too few for the experts of a batch");
}

void ExpertStore::call_ahead(uint32_t bank, std::span<const ExpertUse> predicted, bool single) {
  for (uint32_t rank = 0; rank < predicted.size(); rank++) {
    const uint32_t expert = predicted[rank].expert;
    uint32_t slot = cache_.slot_of(key(bank, expert));
    // What is in memory is held as well: the next calls must not put it out.
    const bool kept = slot != ExpertCache::kNone;
    if (kept && (holds_[slot] != Hold::none || !slots_.ready(slot))) continue;
    if (!kept && single) guesses_[bank].push_back({expert, rank});
    if (!kept && single && !worthwhile(rank)) continue;
    if (!kept) slot = admit(bank, expert, IoPriority::ahead);
    if (slot == ExpertCache::kNone) continue;
    if (!kept) stats_.ahead++;
    holds_[slot] = kept ? Hold::kept : Hold::predicted;
    predicted_[bank].push_back(slot);
  }
}

bool ExpertStore::worthwhile(uint32_t rank) const {
  return rank >= precision_.size() || precision_[rank] >= kWorthwhile;
}

void ExpertStore::judge_guesses(uint32_t bank, std::span<const ExpertUse> chosen) {
  for (const auto& [expert, rank] : guesses_[bank]) {
    if (precision_.size() <= rank) precision_.resize(rank + 1, kWorthwhile);
    precision_[rank] += kLatest * ((is_among(expert, chosen) ? 1 : 0) - precision_[rank]);
  }
  guesses_[bank].clear();
}

void ExpertStore::drop_predictions(uint32_t bank, std::span<const ExpertUse> chosen) {
  for (const uint32_t slot : predicted_[bank]) {
    const uint32_t expert = cache_.key_of(slot) - first_key_[bank];
    if (!is_among(expert, chosen)) drop(slot);
  }
  predicted_[bank].clear();
}

void ExpertStore::drop(uint32_t slot) {
  holds_[slot] = Hold::none;
  if (slots_.pending(slot) && slots_.withdraw(slot)) cache_.clear(slot);
}

void ExpertStore::use(uint32_t bank, uint32_t slot) {
  holds_[slot] = Hold::used;
  used_[bank].push_back(slot);
}

uint32_t ExpertStore::admit(uint32_t bank, uint32_t expert, IoPriority priority) {
  const uint32_t slot = cache_.admit(
      key(bank, expert), [this](uint32_t s) { return holds_[s] == Hold::none && !slots_.pending(s); });
  if (slot != ExpertCache::kNone) read(bank, expert, slot, priority);
  return slot;
}

void ExpertStore::read(uint32_t bank, uint32_t expert, uint32_t slot, IoPriority priority) {
  try {
    slots_.read(slot, region(bank, expert), priority);
  } catch (...) {
    // The slot does not hold the expert.
    cache_.clear(slot);
    throw;
  }
}

void ExpertStore::release(uint32_t bank) {
  for (const uint32_t slot : used_[bank]) holds_[slot] = Hold::none;
  used_[bank].clear();
}

void ExpertStore::sync(uint32_t bank) {
  for (const uint32_t slot : used_[bank]) {
    const uint32_t expert = cache_.key_of(slot) - first_key_[bank];
    slots_.wait(slot, region(bank, expert), stalls_);
  }
}

bool ExpertStore::ready(uint32_t bank, uint32_t expert) const {
  const uint32_t slot = cache_.slot_of(key(bank, expert));
  return slot != ExpertCache::kNone && slots_.ready(slot);
}

const uint8_t* ExpertStore::wait(uint32_t bank, uint32_t expert) const {
  const uint32_t slot = cache_.slot_of(key(bank, expert));
  if (slot == ExpertCache::kNone) throw Error("INTERNAL", "an expert is used that was not called");
  return slots_.wait(slot, region(bank, expert), stalls_);
}

}  // namespace cflow
