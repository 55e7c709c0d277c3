// Memory: what the machine has left, and blocks on huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cflow {

/// Bytes that can still be allocated: the least of the system's estimate and what the cgroup limits leave.
/// UINT64_MAX where nothing says. `root` stands in front of /proc and /sys, for tests.
uint64_t available_memory(const std::string& root = "");

/// @throws Error MEMORY, with both numbers, if `bytes` are more than `available_memory`.
void require_memory(uint64_t bytes, const char* what);

/// Zeroed anonymous memory on transparent huge pages where the system grants them.
class Block {
 public:
  Block() = default;
  /// @throws Error MEMORY
  Block(uint64_t bytes, const char* what);
  /// Address space: only what is touched becomes memory, so nothing is asked of the system before. @throws Error MEMORY
  static Block untouched(uint64_t bytes, const char* what);
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;
  ~Block();

  uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  void map(uint64_t bytes, const char* what, int flags);

  uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace cflow
