// What the tests of the disk queue share: files of known bytes, memory, and the ways to read.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "../io/io.h"

namespace io_test {

using namespace cflow;

inline std::atomic<long> checks{0};

inline void check(bool holds, const std::string& what) {
  checks++;
  if (holds) return;
  std::fprintf(stderr, "io-test: FAILED: %s\n", what.c_str());
  std::exit(1);
}

/// splitmix64.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }
};

/// The byte that belongs at a place of file number `salt`. Never 0xcd or 0xee: those mean that nothing was read.
inline uint8_t byte_at(uint64_t place, uint32_t salt) {
  const auto word = static_cast<uint32_t>(place >> 2) * 2654435761u + salt * 40503u;
  return static_cast<uint8_t>((word >> 24 ^ word >> (8 * (place & 3))) % 200);
}

inline constexpr uint8_t kUntouched = 0xcd;

/// An empty name and a descriptor: nothing is left behind.
class File {
 public:
  explicit File(uint64_t size, uint32_t salt = 0) {
    const char* folder = std::getenv("TMPDIR");
    std::string name = std::string(folder ? folder : "/tmp") + "/cflow-io-XXXXXX";
    fd = mkstemp(name.data());
    check(fd >= 0, "a temporary file");
    unlink(name.c_str());
    std::vector<uint8_t> bytes(size);
    for (uint64_t i = 0; i < size; i++) bytes[i] = byte_at(i, salt);
    check(pwrite(fd, bytes.data(), size, 0) == static_cast<ssize_t>(size), "writing a temporary file");
    fsync(fd);
  }
  ~File() { close(fd); }
  File(const File&) = delete;
  int fd;
};

/// Memory on a boundary of direct I/O.
class Memory {
 public:
  explicit Memory(size_t size)
      : size(size), data(static_cast<uint8_t*>(std::aligned_alloc(4096, (size + 4095) & ~4095ull))) {
    std::memset(data, kUntouched, size);
  }
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
  const size_t size;
  uint8_t* const data;
};

inline bool right(const uint8_t* data, uint64_t place, uint64_t length, uint32_t salt = 0) {
  for (uint64_t i = 0; i < length; i++) {
    if (data[i] != byte_at(place + i, salt)) return false;
  }
  return true;
}

inline IoRequest read_of(uint64_t offset, uint64_t length, uint8_t* data) {
  return {IoRequest::Kind::read, offset, length, data};
}

struct Arm {
  std::string name;
  IoOptions options;
};

inline std::vector<Arm> arms(uint32_t block, unsigned depth) {
  std::vector<Arm> all;
  for (const auto backend : {IoBackend::uring, IoBackend::threads}) {
    for (const auto mode : {IoMode::automatic, IoMode::buffered}) {
      Arm arm;
      arm.name = std::string(backend == IoBackend::uring ? "uring" : "threads") +
                 (mode == IoMode::automatic ? " direct: " : " buffered: ");
      arm.options.backend = backend;
      arm.options.mode = mode;
      arm.options.block = block;
      arm.options.depth = depth;
      all.push_back(arm);
    }
  }
  return all;
}

/// Reads and waits; the failure.
inline int read_now(IoQueue& queue, std::span<const IoRequest> requests) {
  Transfer transfer;
  queue.submit(transfer, requests, IoPriority::needed);
  IoQueue::wait(transfer);
  check(!transfer.pending(), "nothing is pending after a wait");
  return transfer.failure();
}

/// Whether this system reads the file directly, found out without the queue.
inline bool can_read_directly(int fd) {
#ifdef O_DIRECT
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const int direct = open(path.c_str(), O_RDONLY | O_DIRECT);
  Memory memory(4096);
  const bool can = direct >= 0 && pread(direct, memory.data, 4096, 0) == 4096;
  if (direct >= 0) close(direct);
  return can;
#else
  (void)fd;
  return false;
#endif
}

/// Whether this system has io_uring, likewise.
inline bool has_ring() {
#ifdef __linux__
  uint32_t params[30] = {};
  const long fd = syscall(SYS_io_uring_setup, 1, params);
  if (fd >= 0) close(static_cast<int>(fd));
  return fd >= 0;
#else
  return false;
#endif
}

}  // namespace io_test
