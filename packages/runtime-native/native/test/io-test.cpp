// The disk queue against bytes that follow from their place in the file, with both backends, directly and through the
// page cache, and with faults of the system and of our own making. Prints what it checked; exits 1 at a failure.
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>

#include "../io/speed.h"
#include "io-cache.h"
#include "io-faults.h"
#include "io-ring-failure.h"

namespace io_test {
namespace {

void test_reads() {
  constexpr uint64_t kSize = 1'000'003;
  const File file(kSize);
  const bool direct = can_read_directly(file.fd);
  for (const Arm& arm : arms(64 << 10, 4)) {
    const auto queue = IoQueue::open(file.fd, arm.options);
    Memory memory(1 << 20);
    // All of it, up to the multiple of 4,096 after its end.
    check(read_now(*queue, std::vector{read_of(0, (kSize + 4095) & ~4095ull, memory.data)}) == 0, arm.name + "whole");
    check(right(memory.data, 0, kSize), arm.name + "bytes of the whole file");
    const IoStats stats = queue->stats();
    check(stats.bytes_read == kSize && stats.blocks == 16 && stats.bytes_written == 0, arm.name + "counts");
    check(stats.busy_seconds > 0, arm.name + "busy time");
    check(stats.direct == (direct && arm.options.mode == IoMode::automatic), arm.name + "direct where it can be");
    check(stats.uring == (has_ring() && arm.options.backend == IoBackend::uring), arm.name + "io_uring where it can");
    check(stats.reason.empty() == (stats.direct && stats.uring), arm.name + "a reason for what not: " + stats.reason);

    Random random{1};
    for (int round = 0; round < 300; round++) {
      const bool ragged = round % 2;
      const uint64_t unit = ragged ? 1 : 4096;
      const uint64_t offset = random.below(kSize / unit) * unit;
      const uint64_t length = std::min(random.below(300'000 / unit) * unit, kSize - offset);
      const uint64_t shift = ragged ? random.below(4096) : 0;
      std::memset(memory.data, kUntouched, memory.size);
      check(read_now(*queue, std::vector{read_of(offset, length, memory.data + shift)}) == 0, arm.name + "ragged");
      check(right(memory.data + shift, offset, length), arm.name + "bytes of a ragged read");
      check(shift == 0 || memory.data[shift - 1] == kUntouched, arm.name + "nothing before a read");
      check(memory.data[shift + length] == kUntouched, arm.name + "nothing behind a read");
    }
    check(queue->stats().direct == stats.direct, arm.name + "ragged reads do not end direct ones");
    check(read_now(*queue, {}) == 0, arm.name + "nothing at all");
    check(read_now(*queue, std::vector{read_of(5, 0, memory.data)}) == 0, arm.name + "a read of nothing");
  }
}

void test_merging() {
  const File file(1 << 20);
  for (const Arm& arm : arms(64 << 10, 2)) {
    const auto queue = IoQueue::open(file.fd, arm.options);
    Memory memory(1 << 20);
    // 32 neighbours of 4 KiB are two blocks; one with a gap in the file and one with a gap in memory are one each.
    std::vector<IoRequest> requests;
    for (uint64_t i = 0; i < 32; i++) requests.push_back(read_of(i * 4096, 4096, memory.data + i * 4096));
    requests.push_back(read_of(40 * 4096, 4096, memory.data + 32 * 4096));
    requests.push_back(read_of(41 * 4096, 4096, memory.data + 34 * 4096));
    check(read_now(*queue, requests) == 0, arm.name + "merged reads");
    check(right(memory.data, 0, 32 * 4096), arm.name + "bytes of merged reads");
    check(right(memory.data + 32 * 4096, 40 * 4096, 4096), arm.name + "bytes beyond a gap in the file");
    check(right(memory.data + 34 * 4096, 41 * 4096, 4096), arm.name + "bytes beyond a gap in memory");
    check(memory.data[33 * 4096] == kUntouched, arm.name + "the gap in memory");
    check(queue->stats().blocks == 4, arm.name + "four blocks");
  }
}

void test_end_of_file() {
  constexpr uint64_t kSize = 100'000;
  for (const Arm& arm : arms(16 << 10, 4)) {
    const File file(kSize);
    const auto queue = IoQueue::open(file.fd, arm.options);
    Memory memory(1 << 17);
    const auto early = [&](uint64_t offset, uint64_t length) {
      return read_now(*queue, std::vector{read_of(offset, length, memory.data)}) == Transfer::kEarlyEnd;
    };
    check(!early(98'304, 4096), arm.name + "the last page");
    check(early(98'304, 8192), arm.name + "a page more than there is");
    check(early(kSize, 1), arm.name + "a byte at the end");
    check(early(1 << 30, 4096), arm.name + "far behind the end");
    // The file shrinks: reading past its new end fails, also where the end is rounded up.
    check(ftruncate(file.fd, 50'000) == 0, "truncating");
    check(!early(45'056, 4096), arm.name + "before the new end");
    check(early(49'152, 4096), arm.name + "the page of the new end");
    check(early(0, 100'000), arm.name + "across the new end");
    check(early(65'536, 4096), arm.name + "behind the new end");
  }
}

/// A file that shrinks and grows while it is read: what was there, zeros, or an early end.
void test_truncation_while_reading() {
  constexpr uint64_t kSize = 1 << 20;
  for (const Arm& arm : arms(16 << 10, 4)) {
    const File file(kSize);
    const auto queue = IoQueue::open(file.fd, arm.options);
    std::atomic<bool> stop{false};
    std::thread truncator([&] {
      for (Random random{3}; !stop;) {
        check(ftruncate(file.fd, static_cast<off_t>(random.below(kSize))) == 0, "truncating");
        check(ftruncate(file.fd, kSize) == 0, "growing");
      }
    });
    Memory memory(kSize);
    for (int round = 0; round < 50; round++) {
      std::memset(memory.data, kUntouched, kSize);
      const int failure = read_now(*queue, std::vector{read_of(0, kSize, memory.data)});
      check(failure == 0 || failure == Transfer::kEarlyEnd, arm.name + "a shrinking file ends early");
      if (failure) continue;
      bool known = true;
      for (uint64_t i = 0; i < kSize; i++) known &= memory.data[i] == byte_at(i, 0) || memory.data[i] == 0;
      check(known, arm.name + "bytes of a shrinking file");
    }
    stop = true;
    truncator.join();
  }
}

void test_writes() {
  for (const Arm& arm : arms(16 << 10, 3)) {
    const File file(0);
    const auto queue = IoQueue::open(file.fd, arm.options);
    constexpr uint64_t kSize = 200'000;
    Memory from(kSize + 4096), into(kSize + 4096);
    for (uint64_t i = 0; i < kSize; i++) from.data[i] = byte_at(i, 7);
    Transfer transfer;
    queue->submit(transfer, std::vector{IoRequest{IoRequest::Kind::write, 0, kSize, from.data}}, IoPriority::spill);
    IoQueue::wait(transfer);
    check(transfer.failure() == 0, arm.name + "writing");
    check(queue->stats().bytes_written == kSize, arm.name + "bytes written");
    check(pread(file.fd, into.data, kSize + 1, 0) == kSize, arm.name + "size of what was written");
    check(right(into.data, 0, kSize, 7), arm.name + "bytes written, read otherwise");
    std::memset(into.data, kUntouched, into.size);
    // The end is where writing left it.
    check(read_now(*queue, std::vector{read_of(0, 200'704, into.data)}) == 0, arm.name + "reading back");
    check(right(into.data, 0, kSize, 7), arm.name + "bytes read back");
  }
}

int write_to(int fd, const IoOptions& options) {
  const auto queue = IoQueue::open(fd, options);
  Memory memory(1 << 16);
  Transfer transfer;
  queue->submit(transfer, std::vector{IoRequest{IoRequest::Kind::write, 0, 1 << 16, memory.data}}, IoPriority::spill);
  IoQueue::wait(transfer);
  return transfer.failure();
}

void test_refusals() {
  const File file(1 << 16);
  for (Arm& arm : arms(16 << 10, 2)) {
    const int full = open("/dev/full", O_RDWR);
    check(full < 0 || write_to(full, arm.options) == ENOSPC, arm.name + "a full disk");
    if (full >= 0) close(full);
    const int read_only = open(("/proc/self/fd/" + std::to_string(file.fd)).c_str(), O_RDONLY);
    check(read_only < 0 || write_to(read_only, arm.options) == EBADF, arm.name + "writing what may only be read");
    if (read_only >= 0) close(read_only);
    const auto refused = [&](int fd, const IoOptions& options, const std::string& code) {
      try {
        IoQueue::open(fd, options);
      } catch (const Error& error) {
        return code == error.code();
      }
      return false;
    };
    check(refused(-1, arm.options, "NOT_READABLE"), arm.name + "no file");
    arm.options.block = 5000;
    check(refused(file.fd, arm.options, "LIMIT_EXCEEDED"), arm.name + "a ragged block");
    arm.options.block = 4096;
    arm.options.depth = 0;
    check(refused(file.fd, arm.options, "LIMIT_EXCEEDED"), arm.name + "nothing under way");
  }
}

/// A queue whose one block under way takes a millisecond and more: what comes next is queued.
struct Busy {
  Busy(const Arm& arm, int fd) {
    IoOptions options = arm.options;
    options.depth = 1;
    options.faults.delay = 1000;
    queue = IoQueue::open(fd, options);
    submit(first, 0, 1, 0, IoPriority::spill);
    // Begun, not queued.
    while (queue->stats().busy_seconds == 0) std::this_thread::yield();
  }
  /// Pages of the file into pages of the memory.
  void submit(Transfer& transfer, uint64_t page, uint64_t pages, uint64_t into, IoPriority priority) {
    const IoRequest request = read_of(page * 4096, pages * 4096, memory.data + into * 4096);
    queue->submit(transfer, {&request, 1}, priority);
  }
  /// Whether pages of the file are in pages of the memory.
  bool has(uint64_t page, uint64_t pages, uint64_t in) const {
    return right(memory.data + in * 4096, page * 4096, pages * 4096);
  }
  Memory memory{1 << 16};
  Transfer first, one, other, third;
  std::unique_ptr<IoQueue> queue;
};

/// A busy queue to which `body` was done while its first block was under way, however slow this thread was.
template <typename Body>
std::unique_ptr<Busy> busy_with(const Arm& arm, int fd, Body body) {
  for (;;) {
    auto busy = std::make_unique<Busy>(arm, fd);
    body(*busy);
    if (busy->first.pending()) return busy;
  }
}

// Order shows in memory that two transfers read into, one block at a time: who came last is there.

void test_order() {
  const File file(1 << 16);
  for (const Arm& arm : arms(4096, 1)) {
    const auto busy = busy_with(arm, file.fd, [](Busy& b) {
      b.submit(b.third, 1, 2, 1, IoPriority::spill);
      b.submit(b.other, 3, 4, 1, IoPriority::ahead);
      b.submit(b.one, 7, 4, 3, IoPriority::needed);
    });
    for (const Transfer* transfer : {&busy->one, &busy->other, &busy->third}) IoQueue::wait(*transfer);
    check(busy->has(9, 2, 5), arm.name + "bytes of what is needed");
    check(busy->has(5, 2, 3), arm.name + "what is needed comes before what is read ahead");
    check(busy->has(1, 2, 1), arm.name + "what is read ahead comes before the rest");
  }
}

void test_promotion() {
  const File file(1 << 16);
  for (const Arm& arm : arms(4096, 1)) {
    const auto busy = busy_with(arm, file.fd, [](Busy& b) {
      b.submit(b.one, 1, 3, 1, IoPriority::ahead);
      b.submit(b.other, 4, 3, 1, IoPriority::spill);
      b.queue->promote(b.other, IoPriority::needed);
      // Less urgent than it is: nothing changes.
      b.queue->promote(b.other, IoPriority::ahead);
    });
    IoQueue::wait(busy->one);
    IoQueue::wait(busy->other);
    check(busy->has(1, 3, 1), arm.name + "what is promoted comes first");
  }
}

void test_withdrawal() {
  const File file(1 << 16);
  for (const Arm& arm : arms(4096, 1)) {
    bool some = false, more = true, begun = true;
    const auto busy = busy_with(arm, file.fd, [&](Busy& b) {
      b.submit(b.one, 1, 3, 1, IoPriority::ahead);
      b.submit(b.other, 4, 2, 4, IoPriority::ahead);
      b.submit(b.one, 6, 1, 6, IoPriority::needed);
      some = b.queue->withdraw(b.one);
      more = b.queue->withdraw(b.one);
      begun = b.queue->withdraw(b.first);
    });
    check(some, arm.name + "something is taken back");
    check(!busy->one.pending() && busy->one.failure() == ECANCELED, arm.name + "nothing is left of it");
    check(!more, arm.name + "nothing more is taken back");
    check(!begun, arm.name + "what is under way goes on");
    IoQueue::wait(busy->other);
    IoQueue::wait(busy->first);
    check(busy->first.failure() == 0 && busy->has(0, 1, 0), arm.name + "bytes of what was under way");
    check(busy->queue->stats().blocks == 3, arm.name + "what was taken back was not read");
    check(busy->memory.data[4096] == kUntouched && busy->has(4, 2, 4), arm.name + "bytes beside what was taken back");
    // The transfer serves again.
    busy->one.reset();
    busy->submit(busy->one, 8, 1, 8, IoPriority::needed);
    IoQueue::wait(busy->one);
    check(busy->one.failure() == 0 && busy->has(8, 1, 8), arm.name + "a transfer that is used again");
  }
}

void test_closing() {
  const File file(1 << 16);
  for (const Arm& arm : arms(4096, 1)) {
    // So much that a slow thread closes before all is read.
    const auto busy = busy_with(arm, file.fd, [](Busy& b) {
      for (int i = 0; i < 500; i++) b.submit(b.one, 1, 1, 1, IoPriority::needed);
    });
    std::thread waiter([&] { IoQueue::wait(busy->one); });
    busy->queue.reset();
    waiter.join();
    check(!busy->first.pending() && busy->first.failure() == 0, arm.name + "closing waits for what is under way");
    check(busy->has(0, 1, 0), arm.name + "bytes of what was under way");
    check(busy->one.failure() == ECANCELED, arm.name + "closing drops what is queued");
  }
}

/// Transfers that live exactly until their wait is over, from several threads at once.
void test_short_lives() {
  const File file(1 << 20);
  for (const Arm& arm : arms(8192, 4)) {
    const auto queue = IoQueue::open(file.fd, arm.options);
    std::vector<std::thread> readers;
    for (uint64_t reader = 0; reader < 4; reader++) {
      readers.emplace_back([&, reader] {
        Random random{reader};
        for (int round = 0; round < 100; round++) {
          const uint64_t offset = random.below(200) * 4096, length = 4096 * (1 + random.below(16));
          const auto memory = std::make_unique<Memory>(length);
          const auto transfer = std::make_unique<Transfer>();
          queue->submit(*transfer, std::vector{read_of(offset, length, memory->data)}, IoPriority(random.below(3)));
          IoQueue::wait(*transfer);
          if (transfer->failure() || !right(memory->data, offset, length)) std::abort();
        }
      });
    }
    for (std::thread& reader : readers) reader.join();
    checks += 400;
  }
}

void test_speed() {
  const File file(1 << 20);
  for (const Arm& arm : arms(16 << 10, 3)) {
    const auto start = std::chrono::steady_clock::now();
    const DiskSpeed speed = measure_disk(file.fd, 1 << 20, arm.options, 20);
    const double around = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    check(speed.seconds >= 0.02 && speed.seconds <= around, arm.name + "seconds of a measurement");
    check(speed.bytes >= 6 * (16 << 10) && speed.bytes == speed.stats.blocks * (16 << 10), arm.name + "bytes measured");
    try {
      measure_disk(file.fd, 16'000, arm.options, 20);
      check(false, arm.name + "a file shorter than a block");
    } catch (const Error& error) {
      check(error.code() == std::string("LIMIT_EXCEEDED"), arm.name + "a short file is named so");
    }
    try {
      measure_disk(file.fd, 1 << 30, arm.options, 20);
      check(false, arm.name + "a file shorter than was said");
    } catch (const Error& error) {
      check(error.code() == std::string("NOT_READABLE"), arm.name + "an end too early");
    }
  }
}

}  // namespace
}  // namespace io_test

int main(int argc, char** argv) {
  using namespace io_test;
  const int runs = argc > 1 ? std::atoi(argv[1]) : 1000;
  test_reads();
  test_merging();
  test_end_of_file();
  test_truncation_while_reading();
  test_writes();
  test_page_cache();
  test_refusals();
  test_order();
  test_promotion();
  test_withdrawal();
  test_closing();
  test_short_lives();
  test_faults(runs);
  test_fallback();
  test_speed();
  test_ring_failure();
  test_sandbox();
  std::printf("io-test: %ld checks\n", checks.load());
  return 0;
}
