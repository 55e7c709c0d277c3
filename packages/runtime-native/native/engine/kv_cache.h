// Keys and values of one attention, in pages of kPage positions that are never moved: growing allocates, it does not
// copy. With a window the pages form a ring.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"
#include "program.h"

namespace cflow {

class KvCache {
 public:
  /// @param max_batch tokens that one batch appends before the first of them attends
  KvCache(const CacheShape& shape, CacheType type, uint32_t max_batch);

  /// Bytes that `reserve(positions)` would allocate.
  uint64_t bytes_for(uint64_t positions) const;
  /// Makes room for positions 0 to positions - 1. @throws Error MEMORY
  void reserve(uint64_t positions);
  uint64_t bytes() const { return static_cast<uint64_t>(pages_.size()) * page_bytes_; }

  const CacheShape& shape() const { return shape_; }

  /// The page of a head that holds `position`, [kPage / 16][dim][16] and [kPage][dim].
  uint8_t* keys(uint32_t head, uint64_t position) const { return at(position) + head * head_bytes_; }
  uint8_t* values(uint32_t head, uint64_t position) const { return keys(head, position) + head_bytes_ / 2; }

 private:
  uint64_t pages_for(uint64_t positions) const;
  uint8_t* at(uint64_t position) const { return pages_[position / kPage % most_pages_].data(); }

  CacheShape shape_;
  /// Keys and values of one head of a page.
  uint64_t head_bytes_;
  uint64_t page_bytes_;
  /// Length of the ring; unlimited without a window.
  uint64_t most_pages_;
  std::vector<Block> pages_;
};

}  // namespace cflow
