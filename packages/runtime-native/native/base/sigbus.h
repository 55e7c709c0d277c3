// Memory-mapped files that shrink. A read beyond the end of one raises SIGBUS, whose default action ends the process; here
// a page of zeros takes the place of the missing page, and the range that it lies in notes the fault.
#pragma once

#include <cstdint>

namespace cflow {

struct SigbusRange;

/// Guards a mapping for as long as it lives.
class SigbusGuard {
 public:
  /// @throws Error LIMIT_EXCEEDED (1,024 guards exist)
  SigbusGuard(const void* data, uint64_t size);
  SigbusGuard(const SigbusGuard&) = delete;
  ~SigbusGuard();

  /// Whether a page of the mapping could not be read.
  bool faulted() const;

  /// Puts the handler back if something has taken its place since: without it, a fault would end the process or repeat for
  /// ever. One system call where all is well.
  static void keep_installed() noexcept;

 private:
  SigbusRange* range_;
};

}  // namespace cflow
