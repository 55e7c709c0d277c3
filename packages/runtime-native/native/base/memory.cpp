#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
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

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using OpenFile = std::unique_ptr<std::FILE, CloseFile>;

/// The number after `key` in a file of lines, times `unit`; of a file with a bare number when key is empty.
uint64_t number_in(const char* path, const char* key, uint64_t unit) {
  const OpenFile file(std::fopen(path, "re"));
  if (!file) return kUnlimited;
  uint64_t value = kUnlimited;
  char line[256];
  const size_t length = std::strlen(key);
  while (std::fgets(line, sizeof line, file.get())) {
    if (std::strncmp(line, key, length) != 0) continue;
    char* end = nullptr;
    const unsigned long long number = std::strtoull(line + length, &end, 10);
    if (end != line + length && number < kUnlimited / unit) value = number * unit;
    break;
  }
  return value;
}

/// A version of cgroups: where it is mounted, what its lines in /proc/self/cgroup hold, and what its files are called.
struct CgroupVersion {
  const char* root;
  const char* controller;
  const char* limit;
  const char* usage;
};
constexpr CgroupVersion kVersions[] = {{"/sys/fs/cgroup", "", "memory.max", "memory.current"},
                                       {"/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"}};

uint64_t left_in_group(const std::string& folder, const CgroupVersion& version) {
  const auto number = [&](const char* file, const char* key) { return number_in((folder + "/" + file).c_str(), key, 1); };
  const uint64_t limit = number(version.limit, "");
  const uint64_t usage = number(version.usage, "");
  if (limit == kUnlimited || usage == kUnlimited) return kUnlimited;
  // The page cache counts as used, but the kernel can reclaim it.
  const uint64_t cache = number("memory.stat", "inactive_file ");
  const uint64_t used = usage - std::min(usage, cache == kUnlimited ? 0 : cache);
  return limit - std::min(limit, used);
}

/// Whether a name stands in a list with commas; the empty name is the empty list's.
bool lists(std::string_view names, std::string_view name) {
  while (true) {
    const size_t comma = names.find(',');
    if (names.substr(0, comma) == name) return true;
    if (comma == std::string_view::npos) return false;
    names.remove_prefix(comma + 1);
  }
}

/// The group of this process, from the root of its hierarchy: "" for the root itself, or where nothing says.
std::string own_group(const std::string& root, const char* controller) {
  const OpenFile file(std::fopen((root + "/proc/self/cgroup").c_str(), "re"));
  if (!file) return "";
  std::string group;
  char line[4096];
  while (std::fgets(line, sizeof line, file.get())) {
    // hierarchy:controllers:path
    const char* controllers = std::strchr(line, ':');
    const char* path = controllers ? std::strchr(controllers + 1, ':') : nullptr;
    if (!path) continue;
    if (!lists({controllers + 1, path}, controller)) continue;
    group.assign(path + 1, std::strcspn(path + 1, "\n"));
  }
  return group == "/" ? "" : group;
}

/// The least that any group above this process leaves. In a container the path may not be visible: then the root is it.
uint64_t left_in_cgroups(const std::string& root, const CgroupVersion& version) {
  std::string group = own_group(root, version.controller);
  uint64_t least = kUnlimited;
  while (true) {
    least = std::min(least, left_in_group(root + version.root + group, version));
    if (group.empty()) return least;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

}  // namespace

uint64_t available_memory(const std::string& root) {
  uint64_t least = number_in((root + "/proc/meminfo").c_str(), "MemAvailable:", 1024);
  for (const CgroupVersion& version : kVersions) least = std::min(least, left_in_cgroups(root, version));
  return least;
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
