#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "error.h"

namespace cflow {

namespace {

constexpr uint64_t kUnlimited = UINT64_MAX;

std::string in_words(uint64_t bytes) {
  char text[32];
  const bool large = bytes >= 100'000'000;
  std::snprintf(text, sizeof text, large ? "%.2f GB" : "%.2f MB", static_cast<double>(bytes) / (large ? 1e9 : 1e6));
  return text;
}

/// The number after `key` in a file of lines, times `unit`; of a file with a bare number when key is empty.
uint64_t number_in(const char* path, const char* key, uint64_t unit) {
  std::FILE* file = std::fopen(path, "re");
  if (!file) return kUnlimited;
  uint64_t value = kUnlimited;
  char line[256];
  const size_t length = std::strlen(key);
  while (std::fgets(line, sizeof line, file)) {
    if (std::strncmp(line, key, length) != 0) continue;
    char* end = nullptr;
    const unsigned long long number = std::strtoull(line + length, &end, 10);
    if (end != line + length && number < kUnlimited / unit) value = number * unit;
    break;
  }
  std::fclose(file);
  return value;
}

uint64_t left_in_cgroup(const char* limit_file, const char* usage_file, const char* stat_file) {
  const uint64_t limit = number_in(limit_file, "", 1);
  const uint64_t usage = number_in(usage_file, "", 1);
  if (limit == kUnlimited || usage == kUnlimited) return kUnlimited;
  // The page cache counts as used, but gives way.
  const uint64_t cache = number_in(stat_file, "inactive_file ", 1);
  const uint64_t used = usage - std::min(usage, cache == kUnlimited ? 0 : cache);
  return limit - std::min(limit, used);
}

}  // namespace

uint64_t available_memory() {
  const uint64_t system = number_in("/proc/meminfo", "MemAvailable:", 1024);
  const uint64_t v2 = left_in_cgroup("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
                                     "/sys/fs/cgroup/memory.stat");
  const uint64_t v1 = left_in_cgroup("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                                     "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                                     "/sys/fs/cgroup/memory/memory.stat");
  return std::min({system, v1, v2});
}

void require_memory(uint64_t bytes, const char* what) {
  const uint64_t available = available_memory();
  if (bytes <= available) return;
  throw Error("MEMORY", std::string(what) + " need " + in_words(bytes) + ", " + in_words(available) + " are available",
              "use a smaller model or context, or map the weights instead of keeping them resident");
}

Block::Block(uint64_t bytes, const char* what) {
  require_memory(bytes, what);
  map(bytes, what, 0);
}

Block Block::untouched(uint64_t bytes, const char* what) {
  Block block;
  block.map(bytes, what, MAP_NORESERVE);
  return block;
}

void Block::map(uint64_t bytes, const char* what, int flags) {
  constexpr uint64_t kHuge = 2u << 20;
  constexpr uint64_t kSmall = 4096;
  if (bytes == 0) return;
  // Whole huge pages, and one more to start on the boundary of one.
  const bool huge = bytes >= kHuge;
  const uint64_t unit = huge ? kHuge : kSmall;
  size_ = (bytes + unit - 1) / unit * unit;
  const uint64_t reserve = huge ? size_ + kHuge : size_;
  void* at = mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (at == MAP_FAILED) {
    size_ = 0;
    throw Error("MEMORY", std::string(what) + ": the system refused " + in_words(bytes));
  }
  auto* base = static_cast<uint8_t*>(at);
  if (huge) {
    const uint64_t skip = (kHuge - reinterpret_cast<uintptr_t>(base) % kHuge) % kHuge;
    if (skip) munmap(base, skip);
    if (kHuge - skip) munmap(base + skip + size_, kHuge - skip);
    base += skip;
#ifdef MADV_HUGEPAGE
    madvise(base, size_, MADV_HUGEPAGE);
#endif
  }
  data_ = base;
}

Block::Block(Block&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Block& Block::operator=(Block&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Block::~Block() {
  if (data_) munmap(data_, size_);
}

}  // namespace cflow
