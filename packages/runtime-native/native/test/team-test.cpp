// Units of work that threads share: each runs once, and nobody waits for a thread that does not come. Prints what it
// checked; exits 1 at the first failure.
#include "../engine/shares.h"
#include "io-check.h"

using namespace io_test;

namespace {

/// Units that `thread` can claim, in the order in which it gets them.
std::vector<uint32_t> claims(WorkShares& shares, unsigned thread) {
  std::vector<uint32_t> all;
  for (uint32_t unit = 0; shares.claim(thread, unit);) all.push_back(unit);
  shares.finish(static_cast<uint32_t>(all.size()));
  return all;
}

void test_order() {
  WorkShares shares(2);
  shares.open(7, 2);
  check(claims(shares, 1) == std::vector<uint32_t>{2, 3, 4, 0, 1, 5, 6}, "its own share, that of the other, what may wait");
  shares.wait(0);
  check(claims(shares, 0).empty(), "nothing is left");
  shares.open(0, 0);
  shares.wait(0);
  shares.open(3, 3);
  check(claims(shares, 0) == std::vector<uint32_t>{0, 1, 2}, "only units that may wait");
}

/// A helper that sleeps or is paused by the system: its share is run by the thread that leads.
void test_absence() {
  std::atomic<bool> released{false};
  Team team(2, [&](unsigned) { released.wait(false); });
  WorkShares shares(2);
  for (uint32_t phase = 0; phase < 1000; phase++) {
    shares.open(10, 0);
    team.call();
    check(claims(shares, 0).size() == 10, "the leader runs all units");
    shares.wait(team.spins());
  }
  released = true;
  released.notify_all();
}

/// A leader that only waits: helpers run all units.
void test_help() {
  WorkShares shares(3);
  Team team(3, [&](unsigned thread) { claims(shares, thread); });
  for (uint32_t phase = 1; phase <= 100; phase++) {
    shares.open(10, 3);
    team.call();
    shares.wait(phase % 2 ? team.spins() : 0);
  }
  check(claims(shares, 0).empty(), "helpers run all units");
}

/// Many short phases: every unit runs once, sees what was written before its phase, and is seen behind it.
void test_phases(unsigned threads) {
  constexpr uint32_t kUnits = 23, kPhases = 20'000;
  WorkShares shares(threads);
  std::vector<uint32_t> runs(kUnits);
  uint32_t phase = 0;
  std::atomic<long> wrong{0};
  const auto work = [&](unsigned thread) {
    uint32_t ran = 0;
    for (uint32_t unit = 0; shares.claim(thread, unit); ran++) {
      if (runs[unit]++ != phase) wrong++;
    }
    shares.finish(ran);
  };
  Team team(threads, work);
  for (; phase < kPhases; phase++) {
    const uint32_t units = 1 + phase % kUnits;
    shares.open(units, phase % (units + 1));
    team.call();
    work(0);
    shares.wait(team.spins());
    for (uint32_t unit = 0; unit < units; unit++) wrong += runs[unit] != phase + 1;
    for (uint32_t unit = units; unit < kUnits; unit++) wrong += runs[unit]++ != phase;
  }
  check(wrong == 0, "every unit runs once");
}

}  // namespace

int main() {
  test_order();
  test_absence();
  test_help();
  for (const unsigned threads : {2u, 3u, 8u}) test_phases(threads);
  std::printf("team-test: %ld checks\n", checks.load());
  return 0;
}
