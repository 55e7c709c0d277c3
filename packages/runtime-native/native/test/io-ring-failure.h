// A kernel that refuses io_uring while a queue uses it, as a sandbox may: part of io-test.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>

#include "io-check.h"

#ifdef __linux__

namespace io_test {

/// errno of the next calls of io_uring_enter, and how many of them fail.
inline std::atomic<int> ring_error{0};
inline std::atomic<long> ring_failures{0};

}  // namespace io_test

/// Passes on six arguments, as the C library does, however many the caller gave: not for the address sanitizer.
extern "C" __attribute__((visibility("default"), no_sanitize_address)) long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (number == __NR_io_uring_enter && io_test::ring_failures.load() > 0 && io_test::ring_failures.fetch_sub(1) > 0) {
    errno = io_test::ring_error;
    return -1;
  }
  using Function = long(long, ...);
  static auto* const real = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, "syscall"));
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

namespace io_test {

/// Many blocks while the kernel refuses so often: all arrive, and the queue says what carried them.
inline void read_under(int error, long failures, bool ring_goes_on) {
  constexpr uint64_t kSize = 1 << 20;
  const File file(kSize);
  IoOptions options;
  options.block = 4096;
  options.backend = IoBackend::uring;
  const std::string name = "io_uring_enter: " + std::string(std::strerror(error)) + ": ";
  {
    const auto queue = IoQueue::open(file.fd, options);
    if (!queue->stats().uring) return;
    Memory memory(kSize);
    const std::vector all{read_of(0, kSize, memory.data)};
    check(read_now(*queue, all) == 0, name + "before");
    ring_error = error;
    ring_failures = failures;
    for (int round = 0; round < 3; round++) {
      std::memset(memory.data, kUntouched, memory.size);
      check(read_now(*queue, all) == 0, name + "reads");
      check(right(memory.data, 0, kSize), name + "bytes");
    }
    const IoStats stats = queue->stats();
    check(stats.uring == ring_goes_on, name + "what reads");
    check((stats.reason.find("refused while in use") == std::string::npos) == ring_goes_on, name + "why: " + stats.reason);
  }
  ring_failures = 0;
}

inline void test_ring_failure() {
  constexpr long kForEver = 1L << 40;
  read_under(EAGAIN, 5, true);
  read_under(EBUSY, kForEver, false);
  read_under(EPERM, 1, false);
  read_under(EBADF, kForEver, false);
  // Closing a queue that falls back, or is about to.
  for (int round = 0; round < 50; round++) {
    const File file(1 << 16);
    IoOptions options;
    options.block = 4096;
    auto queue = IoQueue::open(file.fd, options);
    Memory memory(1 << 16);
    Transfer transfer;
    const std::vector all{read_of(0, 1 << 16, memory.data)};
    ring_error = EPERM;
    ring_failures = kForEver;
    queue->submit(transfer, all, IoPriority::needed);
    queue.reset();
    check(!transfer.pending(), "a queue that was closed while it fell back");
    ring_failures = 0;
  }
}

}  // namespace io_test

#else

namespace io_test {
inline void test_ring_failure() {}
}  // namespace io_test

#endif
