// The bytes of a model file, mapped or resident.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "engine.h"

namespace cflow {

class Weights {
 public:
  /// @throws Error NOT_READABLE, MEMORY
  static std::unique_ptr<Weights> open(int fd, uint64_t size, WeightMode mode, unsigned threads);
  virtual ~Weights() = default;

  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  /// Anonymous bytes held; 0 when mapped.
  virtual uint64_t resident_bytes() const = 0;
  /// True once a page could not be read: the file has become shorter, or its disk fails. The page reads as zeros then.
  virtual bool faulted() const = 0;
  /// False when the file has become shorter. The rest of its last page reads as zeros without a fault, so this asks.
  virtual bool whole() const = 0;

 protected:
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace cflow
