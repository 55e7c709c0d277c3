// An io_uring by its system calls. One thread uses it; a ring that cannot be made says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "file.h"

namespace cflow {

class Ring {
 public:
  struct Answer {
    uint64_t tag;
    /// Bytes moved, or -errno.
    int32_t result;
  };

  /// A ring for so many operations at once. Null where the kernel has none or refuses it: `reason` says why.
  static std::unique_ptr<Ring> create(unsigned entries, std::string& reason);
  Ring(const Ring&) = delete;
  ~Ring();

  // Note what to do; nothing is begun before enter().
  void transfer(const IoAttempt& attempt, IoRequest::Kind kind, uint64_t tag);
  /// Answers once when `fd` can be read.
  void poll(int fd, uint64_t tag);

  /// Begins what was noted and waits for at least one answer. False, with errno, if the kernel would not have it.
  bool enter();
  std::optional<Answer> answer();
  /// Takes back what was noted last and has not begun: its tag; nothing if all has begun.
  std::optional<uint64_t> take_back();

 private:
  Ring() = default;
  /// What failed, with errno; null if nothing.
  const char* open(unsigned entries);
  bool supports_transfers() const;

  int fd_ = -1;
  uint8_t* queues_ = nullptr;
  size_t queues_bytes_ = 0;
  void* entries_ = nullptr;
  size_t entries_bytes_ = 0;
  uint32_t tail_ = 0;
  uint32_t *sq_head_ = nullptr, *sq_tail_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  uint32_t sq_mask_ = 0, cq_mask_ = 0;
  void* answers_ = nullptr;
};

}  // namespace cflow
