#include "weights.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../base/descriptor.h"
#include "../base/sigbus.h"
#include "../base/sigbus_watch.h"
#include "../base/memory.h"

namespace cflow {

namespace {

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

/// Pages of the file.
class Mapping {
 public:
  Mapping(int fd, uint64_t size) : data_(mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0)), size_(size) {
    if (data_ == MAP_FAILED) unreadable("cannot map the file");
  }
  Mapping(const Mapping&) = delete;
  ~Mapping() { munmap(data_, size_); }
  const uint8_t* data() const { return static_cast<const uint8_t*>(data_); }

 private:
  void* data_;
  uint64_t size_;
};

class MappedWeights : public Weights {
 public:
  MappedWeights(int fd, uint64_t size) : mapping_(fd, size), file_(Descriptor::copy(fd)) {
    data_ = mapping_.data();
    size_ = size;
    if (!file_) unreadable("cannot keep the file open");
    if (fstat(fd, &opened_) != 0) unreadable("cannot look at the file");
    // Reads go by what the file has now; its end must not be missing from the first of them on.
    if (static_cast<uint64_t>(opened_.st_size) < size) became_shorter();
    if (read_range(fd, head_, 0, head_bytes())) unreadable("cannot read the file");
    guard_.emplace(data_, size);
  }
  uint64_t resident_bytes() const override { return 0; }
  bool faulted() const override { return guard_->faulted(); }
  void begin() override { watch_.begin(); }
  void end() override { watch_.end(); }
  bool whole() const override {
    struct stat now = {};
    if (fstat(file_.get(), &now) != 0 || now.st_size != opened_.st_size) return false;
    if (!same(now.st_mtim, opened_.st_mtim)) return false;
    if (same(now.st_ctim, opened_.st_ctim)) return true;
    // A new name, owner or mode changes this time too, and does no harm; but whoever writes may have set the other back.
    uint8_t head[kHead];
    if (read_range(file_.get(), head, 0, head_bytes()) || std::memcmp(head, head_, head_bytes())) return false;
    opened_ = now;
    return true;
  }

 private:
  /// The head of a file, where a checksum over the checksums of all else stands, if it has any. Weights that are
  /// written over in place without it, and with the time of modification set back, go unnoticed.
  static constexpr uint64_t kHead = 4096;
  uint64_t head_bytes() const { return std::min(size_, kHead); }

  const Mapping mapping_;
  const Descriptor file_;
  std::optional<SigbusGuard> guard_;
  SigbusWatch watch_;
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
  void begin() override {}
  void end() override {}
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
      if (__builtin_add_overflow(bytes, align_io(region.offset % kIoAlign + region.length), &bytes)) {
        throw Error("MEMORY", "resident weights: more bytes than can be counted");
      }
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

const float* Weights::floats(uint64_t offset, uint64_t count) const {
  const uint8_t* bytes = at(offset, 4 * count);
  if (reinterpret_cast<uintptr_t>(bytes) % alignof(float) == 0) return reinterpret_cast<const float*>(bytes);
  std::vector<float>& copy = copies_.emplace_back(count);
  std::memcpy(copy.data(), bytes, 4 * count);
  return copy.data();
}

std::unique_ptr<Weights> Weights::open(int fd, uint64_t size, WeightMode mode, unsigned threads) {
  if (mode == WeightMode::resident) return std::make_unique<ResidentWeights>(fd, size, threads);
  return std::make_unique<MappedWeights>(fd, size);
}

}  // namespace cflow
