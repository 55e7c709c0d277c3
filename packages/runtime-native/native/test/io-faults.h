// The disk queue when something goes wrong, by chance or in a sandbox.
#pragma once

#include <cerrno>
#include <memory>
#include <thread>

#ifdef __linux__
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#endif

#include "io-check.h"

namespace io_test {

/// One run with faults: transfers of random reads, some promoted, some withdrawn, some cut off by closing.
struct FaultyRun {
  struct Piece {
    IoRequest request;
    std::unique_ptr<Memory> memory;
  };
  struct Job {
    Transfer transfer;
    std::vector<Piece> pieces;
    bool withdrawn = false;
  };

  FaultyRun(const File& file, uint64_t size, const Arm& arm, uint64_t seed) : name(arm.name), random{seed}, size(size) {
    IoOptions options = arm.options;
    options.depth = static_cast<unsigned>(1 + random.below(6));
    const bool quiet = random.below(4) == 0;
    options.faults = {seed, 20, 200, quiet ? 0u : 10u, random.below(2) ? 100u : 0u};
    queue = IoQueue::open(file.fd, options);
  }

  void submit(Job& job) {
    std::vector<IoRequest> requests;
    for (uint64_t count = 1 + random.below(5); count > 0; count--) {
      const uint64_t unit = random.below(3) ? 4096 : 1;
      const uint64_t offset = random.below((size - 1) / unit) * unit;
      const uint64_t length = std::min(1 + random.below(20) * std::max<uint64_t>(unit, 97), size - offset);
      Piece& piece = job.pieces.emplace_back();
      piece.memory = std::make_unique<Memory>(length + 4096);
      piece.request = read_of(offset, length, piece.memory->data + (unit == 1 ? random.below(4096) : 0));
      requests.push_back(piece.request);
    }
    queue->submit(job.transfer, requests, IoPriority(random.below(3)));
  }

  void run() {
    std::vector<Job> jobs(6);
    for (Job& job : jobs) {
      submit(job);
      if (random.below(4) == 0) queue->promote(job.transfer, IoPriority::needed);
      if (random.below(8) == 0) job.withdrawn = queue->withdraw(job.transfer);
    }
    const bool closes = random.below(8) == 0;
    if (closes) queue.reset();
    for (Job& job : jobs) {
      IoQueue::wait(job.transfer);
      judge(job, closes);
    }
  }

  void judge(const Job& job, bool closed) {
    const int failure = job.transfer.failure();
    failures += failure != 0;
    check(failure == 0 || failure == EIO || (failure == ECANCELED && (job.withdrawn || closed)),
          name + "a failure that was caused: " + std::to_string(failure));
    check(!job.withdrawn || failure != 0, name + "what was taken back is not complete");
    if (failure) return;
    for (const Piece& piece : job.pieces) {
      check(right(piece.request.data, piece.request.offset, piece.request.length), name + "bytes in spite of faults");
    }
  }

  const std::string name;
  Random random;
  const uint64_t size;
  std::unique_ptr<IoQueue> queue;
  long failures = 0;
};

inline void test_faults(int runs) {
  constexpr uint64_t kSize = 300'001;
  const File file(kSize);
  const std::vector<Arm> all = arms(8192, 4);
  long failures = 0;
  for (int i = 0; i < runs; i++) {
    FaultyRun run(file, kSize, all[static_cast<size_t>(i) % all.size()], static_cast<uint64_t>(i));
    run.run();
    failures += run.failures;
  }
  check(failures > runs / 10 && failures < 4L * runs, "some transfers fail, most do not: " + std::to_string(failures));
}

/// EINVAL from a direct read: the block is read otherwise, and so is everything after it.
inline void test_fallback() {
  const File file(1 << 16);
  if (!can_read_directly(file.fd)) return;
  for (const Arm& arm : arms(4096, 2)) {
    IoOptions options = arm.options;
    options.faults.invalid = 1000;
    const auto queue = IoQueue::open(file.fd, options);
    Memory memory(1 << 16);
    check(read_now(*queue, std::vector{read_of(0, 1 << 16, memory.data)}) == 0, arm.name + "reads in spite of EINVAL");
    check(right(memory.data, 0, 1 << 16), arm.name + "bytes in spite of EINVAL");
    const IoStats stats = queue->stats();
    check(!stats.direct && stats.reason.find("direct I/O") != std::string::npos, arm.name + "says that it fell back");
  }
}

/// Where a sandbox refuses io_uring, threads do the work. Filters bind one thread.
inline void test_sandbox() {
#if defined(__linux__) && defined(__x86_64__)
  const File file(1 << 16);
  for (const uint32_t error : {EPERM, ENOSYS}) {
    for (const long call : {SYS_io_uring_setup, SYS_io_uring_enter}) {
      std::thread([&] {
        sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1),
                                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
                                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
        const sock_fprog program{4, filter};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return;
        const auto queue = IoQueue::open(file.fd, {});
        Memory memory(1 << 16);
        check(read_now(*queue, std::vector{read_of(0, 1 << 16, memory.data)}) == 0, "reads in a sandbox");
        check(right(memory.data, 0, 1 << 16), "bytes in a sandbox");
        const IoStats stats = queue->stats();
        check(!stats.uring && stats.reason.find("io_uring") != std::string::npos, "says that there is no io_uring");
      }).join();
    }
  }
#endif
}

}  // namespace io_test
