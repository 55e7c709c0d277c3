#include "sigbus.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>

#include "error.h"

namespace cflow {

struct SigbusRange {
  /// Odd while `begin` and `end` change, so that the handler never takes one of them for the other's.
  std::atomic<uint32_t> version{0};
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<bool> faulted{false};

  bool contains(uintptr_t address) const {
    for (;;) {
      const uint32_t before = version.load(std::memory_order_acquire);
      const bool inside = address >= begin.load(std::memory_order_acquire) && address < end.load(std::memory_order_acquire);
      if (before % 2 == 0 && version.load(std::memory_order_relaxed) == before) return inside;
    }
  }
  void set(uintptr_t from, uintptr_t to) {
    const uint32_t before = version.load(std::memory_order_relaxed);
    version.store(before + 1, std::memory_order_relaxed);
    begin.store(from, std::memory_order_release);
    end.store(to, std::memory_order_release);
    version.store(before + 2, std::memory_order_release);
  }
};

namespace {

constexpr int kMostRanges = 1024;
SigbusRange ranges[kMostRanges];
std::mutex mutex;
/// Known before a handler can ask for it.
const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));

/// What handled SIGBUS before this handler. Never changed once a handler can see it.
constexpr int kMostActions = 16;
struct sigaction actions[kMostActions];
int action_count = 0;
/// What this handler replaced at first, and at last.
std::atomic<const struct sigaction*> first_action{nullptr}, last_action{nullptr};

/// Threads that have passed a signal on to another handler, and are not back.
std::atomic<uintptr_t> passing[64];

/// Everything in it may run in a signal handler.
struct SigbusHandler {
  static void handle(int signal, siginfo_t* info, void* context) {
    const int saved = errno;
    // A signal that was sent (kill, sigqueue) has no address, whatever its si_addr reads as.
    if (info->si_code <= 0 || !fill_page(reinterpret_cast<uintptr_t>(info->si_addr))) pass_on(signal, info, context);
    errno = saved;
  }

  static bool fill_page(uintptr_t address) {
    for (SigbusRange& range : ranges) {
      if (!range.contains(address)) continue;
      void* page = reinterpret_cast<void*>(address / page_size * page_size);
      if (mmap(page, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) return false;
      range.faulted.store(true, std::memory_order_release);
      return true;
    }
    return false;
  }

  /// To what was installed before. Two copies of this library are each other's predecessor once both have installed
  /// themselves again: whoever is called a second time for one signal goes to what it replaced at first.
  static void pass_on(int signal, siginfo_t* info, void* context) {
    const auto self = static_cast<uintptr_t>(pthread_self());
    std::atomic<uintptr_t>* mine = nullptr;
    bool again = false;
    for (auto& entry : passing) again |= entry.load(std::memory_order_relaxed) == self;
    for (auto& entry : passing) {
      uintptr_t none = 0;
      if (again || !entry.compare_exchange_strong(none, self)) continue;
      mine = &entry;
      break;
    }
    call(*(mine ? last_action : first_action).load(std::memory_order_acquire), signal, info, context);
    if (mine) mine->store(0);
  }

  static void call(const struct sigaction& action, int signal, siginfo_t* info, void* context) {
    const bool sent = info->si_code <= 0;
    if (action.sa_flags & SA_SIGINFO) return action.sa_sigaction(signal, info, context);
    if (action.sa_handler == SIG_IGN && sent) return;
    if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) return action.sa_handler(signal);
    // Nobody's: the process ends as it would have. A fault by running the instruction again; what was sent, by sending it
    // again, which arrives when this handler returns.
    struct sigaction fallback = {};
    fallback.sa_handler = SIG_DFL;
    sigaction(signal, &fallback, nullptr);
    if (sent) raise(signal);
  }
};

bool is_own(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) && action.sa_sigaction == SigbusHandler::handle;
}

/// Where the handler can read it; null if there have been too many.
const struct sigaction* kept(const struct sigaction& action) {
  for (int i = 0; i < action_count; i++) {
    const bool same_flags = actions[i].sa_flags == action.sa_flags;
    if (same_flags && (action.sa_flags & SA_SIGINFO ? actions[i].sa_sigaction == action.sa_sigaction
                                                    : actions[i].sa_handler == action.sa_handler)) {
      return &actions[i];
    }
  }
  if (action_count == kMostActions) return nullptr;
  actions[action_count] = action;
  return &actions[action_count++];
}

/// With the mutex held.
void install() {
  struct sigaction current = {};
  if (sigaction(SIGBUS, nullptr, &current) != 0 || is_own(current)) return;
  if (const struct sigaction* action = kept(current)) {
    if (!first_action.load(std::memory_order_relaxed)) first_action.store(action, std::memory_order_release);
    last_action.store(action, std::memory_order_release);
  }
  struct sigaction own = {};
  own.sa_sigaction = SigbusHandler::handle;
  own.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&own.sa_mask);
  sigaction(SIGBUS, &own, nullptr);
}

}  // namespace

SigbusGuard::SigbusGuard(const void* data, uint64_t size) {
  const std::lock_guard lock(mutex);
  install();
  for (SigbusRange& range : ranges) {
    if (range.end.load(std::memory_order_relaxed)) continue;
    const auto begin = reinterpret_cast<uintptr_t>(data);
    range.faulted.store(false, std::memory_order_relaxed);
    range.set(begin, begin + size);
    range_ = &range;
    return;
  }
  throw Error("LIMIT_EXCEEDED", std::to_string(kMostRanges) + " models are mapped already", "close some");
}

SigbusGuard::~SigbusGuard() {
  const std::lock_guard lock(mutex);
  range_->set(0, 0);
}

bool SigbusGuard::faulted() const { return range_->faulted.load(std::memory_order_acquire); }

void SigbusGuard::keep_installed() noexcept {
  struct sigaction current = {};
  if (sigaction(SIGBUS, nullptr, &current) != 0 || is_own(current)) return;
  const std::lock_guard lock(mutex);
  install();
}

}  // namespace cflow
