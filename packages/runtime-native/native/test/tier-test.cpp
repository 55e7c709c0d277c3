// The disk tier: which experts are evicted, slots under slow and failing reads, and whole models that are fetched while
// they run. Prints what it checked; exits 1 at the first failure.
#include <map>
#include <thread>

#include "../tiers/expert_cache.h"
#include "../tiers/expert_store.h"
#include "tier-faults.h"
#include "tier-queue.h"
#include "tier-ring.h"

using namespace tier_test;
using namespace engine_test;

namespace {

// Eviction.

constexpr auto kAny = [](uint32_t) { return true; };

/// The keys in the slots after each was touched and, if absent, admitted; one token an access.
std::vector<std::vector<uint32_t>> replay(double half_life, uint32_t slots, const std::vector<uint32_t>& accesses) {
  ExpertCache cache(6, slots, half_life);
  std::vector<std::vector<uint32_t>> held;
  for (const uint32_t key : accesses) {
    cache.pass(1);
    cache.touch(key, 1);
    if (cache.slot_of(key) == ExpertCache::kNone) cache.admit(key, kAny);
    std::vector<uint32_t> keys;
    for (uint32_t slot = 0; slot < slots; slot++) {
      if (cache.key_of(slot) == ExpertCache::kNone) continue;
      keys.push_back(cache.key_of(slot));
      check(cache.slot_of(cache.key_of(slot)) == slot, "slots and keys name each other");
    }
    std::sort(keys.begin(), keys.end());
    held.push_back(keys);
  }
  return held;
}

void test_replacement() {
  using Held = std::vector<std::vector<uint32_t>>;
  const double never = std::numeric_limits<double>::infinity();
  check(replay(0, 2, {0, 1, 0, 2, 1}) == Held{{0}, {0, 1}, {0, 1}, {0, 2}, {1, 2}}, "LRU");
  // 0 was used three times: 2 evicts 1, which was used once; then 1, by now used twice, evicts 2.
  check(replay(never, 2, {0, 0, 0, 1, 2, 1}) == Held{{0}, {0}, {0}, {0, 1}, {0, 2}, {0, 1}}, "LFU");
  // Half-life 1: after 0 0 0 at times 1 to 3, 0 is worth 7/4 at time 3 and 7/16 at 5; 1 (time 4) 1/2 at 5. So 0 goes.
  check(replay(1, 2, {0, 0, 0, 1, 2}) == Held{{0}, {0}, {0}, {0, 1}, {1, 2}}, "LRFU, half-life 1");
  // Half-life 2 at time 5, with r = √½: 0 is worth r² + r³ + r⁴ = 1.10, 1 is worth r = 0.71. So 1 goes.
  check(replay(2, 2, {0, 0, 0, 1, 2}) == Held{{0}, {0}, {0}, {0, 1}, {0, 2}}, "LRFU, half-life 2");
}

void test_counts() {
  ExpertCache cache(4, 2, 10);
  cache.pass(1);
  cache.touch(0, 3);
  cache.admit(0, kAny);
  cache.pass(1);
  cache.touch(1, 1);
  cache.admit(1, kAny);
  cache.touch(2, 1);
  check(cache.admit(2, kAny) == 1, "three uses a token ago outweigh one now");
  check(cache.admit(3, [](uint32_t) { return false; }) == ExpertCache::kNone, "no slot may be used");
  check(cache.slot_of(3) == ExpertCache::kNone, "and nothing changed");
  check(cache.admit(3, [](uint32_t slot) { return slot == 0; }) == 0, "the free one, though it is worth more");
  cache.clear(1);
  check(cache.slot_of(2) == ExpertCache::kNone && cache.key_of(1) == ExpertCache::kNone, "a slot that was cleared");
  check(cache.admit(0, kAny) == 1, "an empty slot first");
  // Values do not overflow, however long it runs.
  for (int i = 0; i < 1000; i++) {
    cache.pass(1u << 30);
    cache.touch(0, 1);
  }
  cache.touch(1, 1);
  cache.touch(2, 2);
  check(cache.slot_of(0) == 1 && cache.admit(1, kAny) == 0, "what was never touched goes first");
  check(cache.admit(2, kAny) != ExpertCache::kNone && cache.slot_of(2) != ExpertCache::kNone, "after ages");
}

// The store of experts.

constexpr uint64_t kRegion = 5000;

FetchRegion expert_region(uint32_t bank, uint32_t expert) { return {(bank * 16 + expert) * 8192ull, kRegion}; }

std::vector<std::vector<FetchRegion>> banks_of(uint32_t banks, uint32_t experts) {
  std::vector<std::vector<FetchRegion>> all(banks);
  for (uint32_t bank = 0; bank < banks; bank++) {
    for (uint32_t expert = 0; expert < experts; expert++) all[bank].push_back(expert_region(bank, expert));
  }
  return all;
}

using Uses = std::vector<ExpertUse>;

void test_store_calls() {
  SlowQueue queue;
  ExpertStore store(queue, banks_of(2, 4), 3, 0);
  check(store.stats().slots == 3 && store.stats().slot_bytes >= 3 * 8192, "slots");
  store.begin(1);
  store.call(0, Uses{{0, 1}, {1, 1}});
  check(queue.waiting() == std::vector<uint64_t>{0, 8192} && !store.ready(0, 0), "two reads");
  check(code_of([&] { store.call(1, Uses{{0, 1}, {1, 1}}); }) == "INTERNAL", "slots in use are not given away");
  queue.finish(0);
  check(store.ready(0, 0) && !store.ready(0, 1) && right(store.wait(0, 0), expert_region(0, 0)), "the first arrives");
  queue.finish();
  check(right(store.wait(0, 1), expert_region(0, 1)), "the second arrives");
  check(code_of([&] { store.wait(0, 3); }) == "INTERNAL", "an expert that was not called");
  store.begin(1);
  const int before = queue.submitted;
  store.call(0, Uses{{1, 1}, {0, 1}});
  check(queue.submitted == before && store.ready(0, 1), "what is in memory is not read again");
  store.release(0);
  check(store.stats().hits == 2 && store.stats().misses >= 2, "hits and misses");
}

/// A failed read fails those who wait, and no one after them.
void test_store_failures() {
  SlowQueue queue;
  ExpertStore store(queue, banks_of(1, 4), 2, 0);
  store.begin(1);
  store.call(0, Uses{{0, 1}});
  queue.finish(0, EIO);
  check(code_of([&] { store.wait(0, 0); }) == "NOT_READABLE" && !store.ready(0, 0), "a failed read");
  check(code_of([&] { store.sync(0); }) == "NOT_READABLE", "whoever waits for all hears of it");
  store.begin(1);
  store.call(0, Uses{{0, 1}});
  queue.finish();
  check(right(store.wait(0, 0), expert_region(0, 0)), "it is read again");
  store.begin(1);
  store.call(0, Uses{{1, 1}});
  queue.finish(8192, Transfer::kEarlyEnd);
  check(code_of([&] { store.wait(0, 1); }) == "NOT_READABLE", "the file ended");
  // Memory that is refused when a read is queued.
  store.begin(1);
  queue.refuse = true;
  check(code_of([&] { store.call(0, Uses{{2, 1}}); }) == "MEMORY", "a refused read");
  queue.refuse = false;
  store.begin(1);
  store.call(0, Uses{{2, 1}});
  check(!store.ready(0, 2), "what was never read is not ready");
  queue.finish();
  check(right(store.wait(0, 2), expert_region(0, 2)), "and is read then");
}

void test_predictions() {
  SlowQueue queue;
  ExpertStore store(queue, banks_of(2, 4), 4, 0);
  store.begin(1);
  store.call_ahead(1, Uses{{0, 1}, {1, 1}}, false);
  check(queue.priorities() == std::vector<IoPriority>(2, IoPriority::ahead), "less urgent");
  store.call(0, Uses{{0, 1}, {1, 1}});
  store.call(1, Uses{{0, 1}, {2, 1}});
  const uint64_t dropped = expert_region(1, 1).offset;
  const auto waiting = queue.waiting();
  check(std::find(waiting.begin(), waiting.end(), dropped) == waiting.end(), "a wrong prediction is taken back");
  check(queue.priorities() == std::vector<IoPriority>(4, IoPriority::needed), "a right one is promoted");
  queue.finish();
  for (const uint32_t expert : {0u, 2u}) check(right(store.wait(1, expert), expert_region(1, expert)), "experts");
  check(store.stats().predicted == 1 && store.stats().ahead == 2 && store.stats().misses == 3, "are counted");
  store.release(0);
  store.release(1);

  // All four slots hold something now. A prediction keeps what it names, but never stands in the way of a call.
  store.begin(1);
  store.call_ahead(1, Uses{{0, 1}, {2, 1}, {1, 1}, {3, 1}}, false);
  store.call(0, Uses{{2, 1}, {3, 1}});
  queue.finish();
  for (const uint32_t expert : {2u, 3u}) check(right(store.wait(0, expert), expert_region(0, expert)), "gave way");
  store.call(1, Uses{{0, 1}});
  store.release(0);
  store.call(0, Uses{{0, 1}, {1, 1}, {2, 1}});
  queue.finish();
  check(right(store.wait(1, 0), expert_region(1, 0)), "while it is in use nothing takes its place");
  check(right(store.wait(0, 1), expert_region(0, 1)), "the rest is free");
}

/// Experts 0 and 1 of bank 1 are guessed for a single token, in this order, and `chosen` is; returns what was read ahead.
uint64_t guess(ExpertStore& store, SlowQueue& queue, uint32_t chosen) {
  const uint64_t before = store.stats().ahead;
  store.begin(1);
  store.call_ahead(1, Uses{{0, 1}, {1, 1}}, true);
  const uint64_t ahead = store.stats().ahead - before;
  store.call(1, Uses{{chosen, 1}});
  queue.finish();
  // Nothing of bank 1 stays in memory.
  store.release(1);
  store.call(0, Uses{{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  queue.finish();
  store.release(0);
  return ahead;
}

/// A rank that is mostly wrong is no longer read, and is again once it has been right for a while.
void test_ranks() {
  SlowQueue queue;
  ExpertStore store(queue, banks_of(2, 4), 4, 0);
  check(guess(store, queue, 0) == 2, "both ranks have their chance");
  for (int i = 0; i < 50; i++) guess(store, queue, 0);
  check(guess(store, queue, 0) == 1, "the second has been wrong");
  for (int i = 0; i < 100; i++) guess(store, queue, 1);
  check(guess(store, queue, 1) == 1, "now the first");
  for (int i = 0; i < 100; i++) guess(store, queue, 2);
  check(guess(store, queue, 2) == 0, "neither");
  for (int i = 0; i < 100; i++) guess(store, queue, 0);
  check(guess(store, queue, 0) == 1, "the first is right again");
}

/// A read that was begun cannot be taken back: its slot is waited for, not given away.
void test_busy_slots() {
  SlowQueue queue;
  ExpertStore store(queue, banks_of(2, 4), 2, 0);
  store.begin(1);
  store.call(0, Uses{{0, 1}, {1, 1}});
  queue.begin_all();
  // The batch is broken off here.
  store.begin(1);
  std::atomic<bool> called{false};
  std::thread caller([&] {
    store.call(1, Uses{{0, 1}, {1, 1}});
    called = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  check(!called && queue.waiting().size() == 2, "the call waits for slots that are being read into");
  queue.finish(0);
  queue.finish(8192);
  caller.join();
  queue.finish();
  for (const uint32_t expert : {0u, 1u}) check(right(store.wait(1, expert), expert_region(1, expert)), "then reads");

  // A router that met NaN names an expert twice.
  store.begin(1);
  store.call(0, Uses{{0, 1}, {0, 1}});
  queue.finish();
  store.begin(1);
  store.call(0, Uses{{0, 1}});
  store.call(1, Uses{{0, 1}});
  queue.finish();
  check(right(store.wait(0, 0), expert_region(0, 0)) && right(store.wait(1, 0), expert_region(1, 0)), "named twice");
}

/// A prediction that gave way while half of it was being read is not what a call waits for.
void test_half_taken_back() {
  SlowQueue queue;
  ExpertStore store(queue, banks_of(2, 4), 4, 0);
  store.begin(1);
  store.call_ahead(1, Uses{{0, 1}, {1, 1}}, false);
  queue.split_and_begin(expert_region(1, 1).offset);
  // Needs two slots, of which one is being read into.
  store.call(0, Uses{{0, 1}, {1, 1}, {2, 1}});
  for (uint32_t expert = 0; expert < 3; expert++) queue.finish(expert_region(0, expert).offset);
  store.release(0);
  store.call(1, Uses{{1, 1}});
  queue.finish();
  const std::string code = code_of([&] { store.sync(1); });
  check(code.empty() && right(store.wait(1, 1), expert_region(1, 1)), "half taken back: " + code);
}

/// Whatever the order of calls, predictions, releases and breaks: an expert in use stands where it was said to.
void test_store_at_random(uint64_t seed, uint32_t failures) {
  SlowQueue queue(true, seed);
  queue.failures = failures;
  io_test::Random random{seed};
  constexpr uint32_t kBanks = 4, kEach = 6;
  const auto slots = static_cast<uint32_t>(4 + random.below(8));
  ExpertStore store(queue, banks_of(kBanks, kEach), slots, static_cast<double>(random.below(3)) * 8);
  const auto choose = [&] {
    const auto first = static_cast<uint32_t>(random.below(kEach));
    return Uses{{first, 1}, {static_cast<uint32_t>((first + 1 + random.below(kEach - 1)) % kEach), 2}};
  };
  std::map<uint32_t, Uses> used;
  const auto judge = [&](uint32_t bank) {
    for (const ExpertUse& use : used[bank]) {
      const uint8_t* data = nullptr;
      const std::string code = code_of([&] { data = store.wait(bank, use.expert); });
      check(code.empty() || (failures && code == "NOT_READABLE"), "a typed error: " + code);
      if (data) check(right(data, expert_region(bank, use.expert)), "the bytes of an expert in use");
    }
  };
  for (int batch = 0; batch < 20; batch++) {
    store.begin(1);
    used.clear();
    const uint64_t broken = random.below(3) ? kBanks : random.below(kBanks);
    for (uint32_t bank = 0; bank < broken; bank++) {
      if (bank + 1 < kBanks && random.below(2)) store.call_ahead(bank + 1, choose(), false);
      used[bank] = choose();
      store.call(bank, used[bank]);
      // At most two banks are in use, as with a delay of one layer.
      if (bank > 0) {
        judge(bank - 1);
        store.release(bank - 1);
      }
      if (random.below(2)) judge(bank);
    }
    if (broken == kBanks) {
      judge(kBanks - 1);
      store.release(kBanks - 1);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  test_replacement();
  test_counts();
  test_store_calls();
  test_store_failures();
  test_predictions();
  test_ranks();
  test_busy_slots();
  test_half_taken_back();
  test_ring();
  test_ring_breaks();
  for (uint64_t seed = 0; seed < 30; seed++) {
    test_store_at_random(seed, seed % 3 ? 0 : 50);
    test_ring_at_random(seed);
  }
  test_models(argc > 1 ? std::atoi(argv[1]) : 1000);
  std::printf("tier-test: %ld checks\n", checks.load());
  return 0;
}
