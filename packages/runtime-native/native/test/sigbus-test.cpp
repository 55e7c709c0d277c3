// Memory-mapped files that shrink, beside handlers and signals of others. Every case has a process of its own. Prints what
// it checked; exits 1 at the first failure.
#include <sys/mman.h>
#include <sys/wait.h>

#include <csignal>
#include <thread>

#include "../base/sigbus.h"
#include "io-check.h"

using namespace io_test;

namespace {

constexpr uint64_t kPages = 4, kBytes = 4096 * kPages;

/// A mapped file of two pages or none.
class MappedFile {
 public:
  MappedFile() : file_(kBytes), data_(mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file_.fd, 0)) {
    check(data_ != MAP_FAILED, "a mapping");
  }
  ~MappedFile() { munmap(data_, kBytes); }
  const void* data() const { return data_; }
  void shrink() const { check(ftruncate(file_.fd, 0) == 0, "truncation"); }
  uint8_t byte(uint64_t at) const { return static_cast<const volatile uint8_t*>(data_)[at]; }

 private:
  File file_;
  void* data_;
};

/// Shrinks a guarded file and reads it.
void survives() {
  const MappedFile file;
  const SigbusGuard guard(file.data(), kBytes);
  check(file.byte(5000) == byte_at(5000, 0) && !guard.faulted(), "a whole file");
  file.shrink();
  check(file.byte(5000) == 0 && guard.faulted(), "a file that shrank");
  check(file.byte(9000) == 0, "another page of it");
}

void handle(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  check(sigaction(SIGBUS, &action, nullptr) == 0, "a handler");
}

/// How a child process ends that runs `body`: its signal, or 0 if it returns. What hangs ends by SIGALRM.
template <typename Body>
int end_of(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    // A sanitizer has a handler of its own.
    handle(SIG_DFL);
    body();
    std::_Exit(0);
  }
  int status = 0;
  check(waitpid(child, &status, 0) == child, "a child");
  if (WIFEXITED(status)) check(WEXITSTATUS(status) == 0, "a check in the child");
  checks++;
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/// Handlers of any thread count; lock-free, so that they may.
std::atomic<int> seen{0};
void count(int) { seen++; }
void count_with_info(int, siginfo_t*, void*) { seen++; }

void test_sent_signals() {
  check(end_of(survives) == 0, "a shrinking file");
  const auto sent = [] {
    survives();
    raise(SIGBUS);
  };
  check(end_of(sent) == SIGBUS, "a sent signal ends the process, as it would without this handler");
  check(end_of([] {
          handle(SIG_IGN);
          survives();
          raise(SIGBUS);
          survives();
        }) == 0,
        "a sent signal that was ignored stays so, and the guard stays");
  check(end_of([] {
          handle(count);
          survives();
          raise(SIGBUS);
          check(seen == 1, "an earlier handler hears of a sent signal");
          survives();
          check(seen == 1, "and not of a shrinking file");
        }) == 0,
        "an earlier handler");
  check(end_of([] {
          struct sigaction action = {};
          action.sa_sigaction = count_with_info;
          action.sa_flags = SA_SIGINFO;
          sigaction(SIGBUS, &action, nullptr);
          survives();
          raise(SIGBUS);
          check(seen == 1, "an earlier handler with SA_SIGINFO");
          survives();
        }) == 0,
        "an earlier handler with SA_SIGINFO");
}

void test_faults_of_others() {
  check(end_of([] {
          survives();
          const MappedFile file;
          file.shrink();
          file.byte(0);
        }) == SIGBUS,
        "a file that is not guarded ends the process");
  check(end_of([] {
          handle(SIG_IGN);
          survives();
          const MappedFile file;
          file.shrink();
          file.byte(0);
        }) == SIGBUS,
        "a fault cannot be ignored");
}

/// As process.on('SIGBUS') does: its handler returns, and the fault would repeat for ever.
void test_later_handler() {
  check(end_of([] {
          const MappedFile file;
          const SigbusGuard guard(file.data(), kBytes);
          handle(count);
          SigbusGuard::keep_installed();
          file.shrink();
          check(file.byte(0) == 0 && guard.faulted() && seen == 0, "a file that shrinks under a later handler");
          raise(SIGBUS);
          check(seen == 1, "which hears of what is sent");
          handle(SIG_DFL);
          survives();
        }) == 0,
        "a later handler");
  // Installed while a file is read: it hears of the page fault again and again, until the handler is put back.
  check(end_of([] {
          const MappedFile file;
          const SigbusGuard guard(file.data(), kBytes);
          handle(count);
          file.shrink();
          std::thread reader([&] { check(file.byte(0) == 0, "a page that another handler heard of"); });
          while (seen < 100) std::this_thread::yield();
          SigbusGuard::keep_installed();
          reader.join();
          check(guard.faulted(), "a fault under another handler is noted in the end");
        }) == 0,
        "a handler that is installed while a file is read");
  // Handlers that come and go for long: no limit is reached.
  check(end_of([] {
          for (int i = 0; i < 1000; i++) {
            handle(i % 3 ? count : SIG_DFL);
            SigbusGuard::keep_installed();
          }
          survives();
        }) == 0,
        "many handlers");
}

/// Guards come and go while files shrink on other threads.
void test_threads() {
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; i++) {
    threads.emplace_back([&] {
      while (!ended) {
        const MappedFile file;
        for (int j = 0; j < 50; j++) const SigbusGuard guard(file.data(), kBytes);
      }
    });
  }
  for (int i = 0; i < 100; i++) survives();
  ended = true;
  for (auto& thread : threads) thread.join();
}

}  // namespace

int main() {
  test_sent_signals();
  test_faults_of_others();
  test_later_handler();
  test_threads();
  std::printf("sigbus-test: %ld checks\n", checks.load());
  return 0;
}
