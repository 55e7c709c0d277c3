// The bytes of a model file: mapped, resident, or both by region.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <span>
#include <vector>

#include "engine.h"

namespace cflow {

class Weights {
 public:
  /// @throws Error NOT_READABLE, MEMORY, LIMIT_EXCEEDED (mappings)
  static std::unique_ptr<Weights> open(int fd, uint64_t size, WeightMode mode, unsigned threads);
  /// Reads the regions into memory and maps the rest. @throws Error NOT_READABLE, MEMORY, LIMIT_EXCEEDED (mappings)
  static std::unique_ptr<Weights> open_direct(int fd, uint64_t size, std::span<const FetchRegion> resident, IoQueue& io);
  virtual ~Weights() = default;

  /// Of the file.
  uint64_t size() const { return size_; }
  /// Where bytes of the file stand in memory; they must lie in it.
  virtual const uint8_t* at(uint64_t offset, [[maybe_unused]] uint64_t length) const { return data_ + offset; }
  /// f32 numbers of the file; a copy of them where its bytes are not aligned. They must lie in it. Not from several threads
  /// at once.
  const float* floats(uint64_t offset, uint64_t count) const;
  /// Anonymous bytes held; 0 when mapped.
  virtual uint64_t resident_bytes() const = 0;
  /// A batch begins to read, or has ended.
  virtual void begin() = 0;
  virtual void end() = 0;
  /// True once a page could not be read: the file has become shorter, or its disk fails. The page reads as zeros then.
  virtual bool faulted() const = 0;
  /// False when a file that is mapped or fetched from has become shorter, or was written to. The rest of its last page reads
  /// as zeros without a fault, so this asks. Not from several threads at once.
  virtual bool whole() const = 0;

 protected:
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;

 private:
  mutable std::vector<std::vector<float>> copies_;
};

}  // namespace cflow
