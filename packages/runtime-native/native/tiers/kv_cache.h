// Keys and values of one attention, in pages of kPage positions that are never moved: growing allocates, it does not
// copy. A copy of a cache shares its pages until one of them appends to a page. With a window the pages form a ring; without one, the oldest may have gone to disk, and stand elsewhere while
// they are read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../base/memory.h"
#include "../kernels/kernels.h"

namespace cflow {

struct CacheShape {
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t window;  // 0 = all
};

/// Pages that were dropped, where they are for the time being.
class StagedPages {
 public:
  virtual ~StagedPages() = default;
  /// Waits for the pages. Any thread. @throws Error NOT_READABLE
  virtual uint8_t* page(uint64_t index) const = 0;
};

class KvCache {
 public:
  /// @param max_batch tokens that one batch appends before the first of them attends
  KvCache(const CacheShape& shape, CacheType type, uint32_t max_batch);

  /// Bytes that `reserve(start, positions)` would allocate.
  uint64_t bytes_for(uint64_t start, uint64_t positions) const;
  /// Makes room for positions 0 to positions - 1, and pages of its own for those from `start` on.
  /// @throws Error MEMORY, and then nothing has changed but who owns a page
  void reserve(uint64_t start, uint64_t positions);
  size_t pages() const { return pages_.size(); }
  /// Gives back what `reserve` added to so many pages.
  void shrink(size_t pages) noexcept { pages_.erase(pages_.begin() + static_cast<ptrdiff_t>(pages), pages_.end()); }
  /// Of the pages that it holds, shared ones among them.
  uint64_t bytes() const { return (pages_.size() - dropped_) * page_bytes_; }
  /// Length of the ring, or what so many positions need.
  uint64_t pages_for(uint64_t positions) const;
  uint64_t page_bytes() const { return page_bytes_; }

  /// A batch may write positions before `positions` from now on.
  void begin(uint64_t positions) { written_ = std::max(written_, positions); }
  /// Whether the cache can go back to its first `position` positions: a ring may have overwritten what the next token sees.
  bool reaches(uint64_t position) const;
  /// Goes back to the first `position` positions, which `reaches`, and frees the pages behind them.
  void truncate(uint64_t position) noexcept;

  /// Frees the pages before `page`. Not with a window.
  void drop_before(uint64_t page);
  /// Whoever reads a page that was dropped finds it there.
  void stage(const StagedPages* staged) { staged_ = staged; }
  /// The first position that was not dropped.
  uint64_t kept_from() const { return dropped_ * kPage; }
  /// A page that was not dropped.
  uint8_t* page(uint64_t index) const { return pages_[index]->data(); }

  const CacheShape& shape() const { return shape_; }

  /// The page of a head that holds `position`, [kPage / 16][dim][16] and [kPage][dim].
  uint8_t* keys(uint32_t head, uint64_t position) const { return at(position) + head * head_bytes_; }
  uint8_t* values(uint32_t head, uint64_t position) const { return keys(head, position) + head_bytes_ / 2; }

 private:
  /// Calls visit(page) for the pages of positions from `start` on that are there and shared.
  template <typename Visit>
  void each_shared(uint64_t start, uint64_t positions, Visit&& visit) const {
    const uint64_t first = start / kPage;
    const uint64_t end = std::min((positions + kPage - 1) / kPage, first + std::min<uint64_t>(most_pages_, UINT32_MAX));
    for (uint64_t page = first; page < end; page++) {
      const uint64_t index = page % most_pages_;
      if (index < pages_.size() && pages_[index].use_count() > 1) visit(index);
    }
  }
  /// Whether the ring has gone round.
  bool wrapped() const { return shape_.window && written_ > most_pages_ * kPage; }
  uint8_t* at(uint64_t position) const {
    const uint64_t index = position / kPage % most_pages_;
    return index < dropped_ ? staged_->page(index) : page(index);
  }

  CacheShape shape_;
  /// Keys and values of one head of a page.
  uint64_t head_bytes_;
  uint64_t page_bytes_;
  /// Length of the ring; unlimited without a window.
  uint64_t most_pages_;
  std::vector<std::shared_ptr<Block>> pages_;
  uint64_t dropped_ = 0;
  /// Positions before it may have been written since the cache was empty.
  uint64_t written_ = 0;
  const StagedPages* staged_ = nullptr;
};

}  // namespace cflow
