#include "weights.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../base/memory.h"

namespace cflow {

namespace {

// A read beyond the end of a file that shrank after it was mapped raises SIGBUS, whose default ends the process. The
// handler puts a page of zeros where the file's page was and notes it; the call that ran into it then fails.

struct Guarded {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> faulted{false};
};

constexpr int kMostMappings = 1024;
Guarded guarded[kMostMappings];
std::mutex guard_mutex;
struct sigaction previous_action;
uintptr_t page_size;

Guarded* find_guarded(uintptr_t address) {
  for (Guarded& entry : guarded) {
    if (address >= entry.begin.load(std::memory_order_acquire) && address < entry.end.load(std::memory_order_acquire)) {
      return &entry;
    }
  }
  return nullptr;
}

void on_sigbus(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (Guarded* entry = find_guarded(address)) {
    const int saved = errno;
    void* page = reinterpret_cast<void*>(address / page_size * page_size);
    const void* at = mmap(page, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    errno = saved;
    if (at != MAP_FAILED) {
      entry->faulted.store(true, std::memory_order_release);
      return;
    }
  }
  if (previous_action.sa_flags & SA_SIGINFO) {
    if (previous_action.sa_sigaction) return previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    return previous_action.sa_handler(signal);
  }
  // Nobody's: the instruction runs again and ends the process as it would have.
  struct sigaction fallback = {};
  fallback.sa_handler = SIG_DFL;
  sigaction(SIGBUS, &fallback, nullptr);
}

/// Installed when the first file is mapped, and again if something took its place since.
void install_handler() {
  page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction current = {};
  sigaction(SIGBUS, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_sigbus) return;
  previous_action = current;
  struct sigaction action = {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

Guarded* guard(const void* data, uint64_t size) {
  const std::lock_guard lock(guard_mutex);
  install_handler();
  for (Guarded& entry : guarded) {
    if (entry.end.load(std::memory_order_relaxed)) continue;
    const auto begin = reinterpret_cast<uintptr_t>(data);
    entry.faulted.store(false, std::memory_order_relaxed);
    entry.begin.store(begin, std::memory_order_release);
    entry.end.store(begin + size, std::memory_order_release);
    return &entry;
  }
  throw Error("LIMIT_EXCEEDED", std::to_string(kMostMappings) + " models are mapped already", "close some");
}

void unguard(Guarded* entry) {
  const std::lock_guard lock(guard_mutex);
  entry->end.store(0, std::memory_order_release);
  entry->begin.store(0, std::memory_order_release);
}

[[noreturn]] void unreadable(const char* doing) {
  if (errno == ENOMEM) throw Error("MEMORY", std::string(doing) + ": the address space is full", "close other models");
  throw Error("NOT_READABLE", std::string(doing) + ": " + std::strerror(errno));
}

[[noreturn]] void became_shorter() {
  throw Error("NOT_READABLE", "the file has become shorter", "convert or copy it again");
}

#ifdef __APPLE__
#define st_mtim st_mtimespec
#define st_ctim st_ctimespec
#endif

bool same(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

/// Reads [from, to) of the file; errno of the failure, 0 if none, -1 at an early end.
int read_range(int fd, uint8_t* data, uint64_t from, uint64_t to) {
  constexpr uint64_t kPiece = 8u << 20;
  while (from < to) {
    const ssize_t got = pread(fd, data + from, std::min(kPiece, to - from), static_cast<off_t>(from));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return -1;
    from += static_cast<uint64_t>(got);
  }
  return 0;
}

class MappedWeights : public Weights {
 public:
  MappedWeights(int fd, uint64_t size) {
    void* at = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) unreadable("cannot map the file");
    data_ = static_cast<const uint8_t*>(at);
    size_ = size;
    try {
      fd_ = dup(fd);
      if (fd_ < 0) unreadable("cannot keep the file open");
      if (fstat(fd, &opened_) != 0) unreadable("cannot look at the file");
      // Reads go by what the file has now; its end must not be missing from the first of them on.
      if (static_cast<uint64_t>(opened_.st_size) < size) became_shorter();
      if (read_range(fd, head_, 0, head_bytes())) unreadable("cannot read the file");
      guard_ = guard(at, size);
    } catch (...) {
      if (fd_ >= 0) close(fd_);
      munmap(at, size);
      throw;
    }
  }
  ~MappedWeights() override {
    unguard(guard_);
    close(fd_);
    munmap(const_cast<uint8_t*>(data_), size_);
  }
  uint64_t resident_bytes() const override { return 0; }
  bool faulted() const override { return guard_->faulted.load(std::memory_order_acquire); }
  bool whole() const override {
    struct stat now = {};
    if (fstat(fd_, &now) != 0 || now.st_size != opened_.st_size) return false;
    if (!same(now.st_mtim, opened_.st_mtim)) return false;
    if (same(now.st_ctim, opened_.st_ctim)) return true;
    // A new name, owner or mode changes this time too, and does no harm; but whoever writes may have set the other back.
    uint8_t head[kHead];
    if (read_range(fd_, head, 0, head_bytes()) || std::memcmp(head, head_, head_bytes())) return false;
    opened_ = now;
    return true;
  }

 private:
  /// The head of a file, where a checksum over the checksums of all else stands, if it has any. Weights that are
  /// written over in place without it, and with the time of modification set back, go unnoticed.
  static constexpr uint64_t kHead = 4096;
  uint64_t head_bytes() const { return std::min(size_, kHead); }

  int fd_ = -1;
  Guarded* guard_ = nullptr;
  /// As when the file was last known to be what was opened.
  mutable struct stat opened_ = {};
  uint8_t head_[kHead];
};

class ResidentWeights final : public Weights {
 public:
  ResidentWeights(int fd, uint64_t size, unsigned threads) : block_(size, "resident weights") {
    data_ = block_.data();
    size_ = size;
    std::vector<int> results(threads, 0);
    auto share = [&](unsigned index) {
      results[index] = read_range(fd, block_.data(), size * index / threads, size * (index + 1) / threads);
    };
    std::vector<std::jthread> readers;
    for (unsigned i = 1; i < threads; i++) readers.emplace_back(share, i);
    share(0);
    readers.clear();
    for (const int result : results) {
      if (result < 0) became_shorter();
      if (result > 0) {
        errno = result;
        unreadable("cannot read the file");
      }
    }
  }
  uint64_t resident_bytes() const override { return block_.size(); }
  bool faulted() const override { return false; }
  bool whole() const override { return true; }

 private:
  Block block_;
};

/// Resident regions stand one behind the other, each as far into a page as it does in the file.
class DirectWeights final : public MappedWeights {
 public:
  DirectWeights(int fd, uint64_t size, std::span<const FetchRegion> resident, IoQueue& io)
      : MappedWeights(fd, size), block_(place(resident), "resident weights") {
    Transfer transfer;
    std::vector<IoRequest> requests;
    for (const Region& region : regions_) {
      const uint64_t first = region.offset / kIoAlign * kIoAlign;
      requests.push_back({IoRequest::Kind::read, first, align_io(region.offset + region.length - first),
                          block_.data() + region.at - (region.offset - first)});
    }
    io.submit(transfer, requests, IoPriority::needed);
    IoQueue::wait(transfer);
    if (transfer.failure() == 0) return;
    if (transfer.failure() == Transfer::kEarlyEnd) became_shorter();
    errno = transfer.failure();
    unreadable("cannot read the file");
  }

  const uint8_t* at(uint64_t offset, uint64_t length) const override {
    const auto after = std::upper_bound(regions_.begin(), regions_.end(), offset,
                                        [](uint64_t value, const Region& region) { return value < region.offset; });
    if (after != regions_.begin()) {
      const Region& region = *(after - 1);
      if (offset - region.offset <= region.length && length <= region.length - (offset - region.offset)) {
        return block_.data() + region.at + (offset - region.offset);
      }
    }
    return data_ + offset;
  }
  uint64_t resident_bytes() const override { return block_.size(); }

 private:
  struct Region {
    uint64_t offset;
    uint64_t length;
    /// Byte of the block.
    uint64_t at;
  };

  /// Sorts the regions and gives them places; returns the bytes that they need.
  uint64_t place(std::span<const FetchRegion> resident) {
    for (const FetchRegion& region : resident) regions_.push_back({region.offset, region.length, 0});
    std::sort(regions_.begin(), regions_.end(), [](const Region& a, const Region& b) { return a.offset < b.offset; });
    uint64_t bytes = 0;
    for (Region& region : regions_) {
      region.at = bytes + region.offset % kIoAlign;
      bytes += align_io(region.offset % kIoAlign + region.length);
    }
    return bytes;
  }

  std::vector<Region> regions_;
  const Block block_;
};

}  // namespace

std::unique_ptr<Weights> Weights::open_direct(int fd, uint64_t size, std::span<const FetchRegion> resident, IoQueue& io) {
  return std::make_unique<DirectWeights>(fd, size, resident, io);
}

std::unique_ptr<Weights> Weights::open(int fd, uint64_t size, WeightMode mode, unsigned threads) {
  if (mode == WeightMode::resident) return std::make_unique<ResidentWeights>(fd, size, threads);
  return std::make_unique<MappedWeights>(fd, size);
}

}  // namespace cflow
