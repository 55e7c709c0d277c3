#include "kv_cache.h"

#include <cstring>
#include <utility>

namespace cflow {

namespace {

uint64_t value_bytes(CacheType type) { return type == CacheType::f16 ? 2 : 4; }

/// The oldest position that a batch needs is window - 1 before its first, so a ring spans window + batch - 1 positions,
/// which may begin and end within a page.
uint64_t ring_pages(uint32_t window, uint32_t max_batch) {
  if (window == 0) return UINT64_MAX;
  return (uint64_t{window} + max_batch + kPage - 2) / kPage + 1;
}

}  // namespace

KvCache::KvCache(const CacheShape& shape, CacheType type, uint32_t max_batch)
    : shape_(shape),
      head_bytes_(2 * value_bytes(type) * kPage * shape.head_dim),
      page_bytes_(head_bytes_ * shape.kv_heads),
      most_pages_(ring_pages(shape.window, max_batch)) {}

uint64_t KvCache::pages_for(uint64_t positions) const {
  return std::min(most_pages_, (positions + kPage - 1) / kPage);
}

uint64_t KvCache::bytes_for(uint64_t start, uint64_t positions) const {
  const uint64_t pages = pages_for(positions);
  uint64_t bytes = pages > pages_.size() ? (pages - pages_.size()) * page_bytes_ : 0;
  each_shared(start, positions, [&](uint64_t) { bytes += page_bytes_; });
  return bytes;
}

void KvCache::reserve(uint64_t start, uint64_t positions) {
  const auto page = [&] { return std::make_shared<Block>(page_bytes_, "key/value caches"); };
  const uint64_t pages = pages_for(positions);
  const size_t before = pages_.size();
  try {
    each_shared(start, positions, [&](uint64_t index) {
      auto own = page();
      std::memcpy(own->data(), pages_[index]->data(), page_bytes_);
      pages_[index] = std::move(own);
    });
    while (pages_.size() < pages) pages_.push_back(page());
  } catch (...) {
    shrink(before);
    throw;
  }
}

bool KvCache::reaches(uint64_t position) const {
  if (position == 0 || !wrapped()) return true;
  const uint64_t oldest = position + 1 > shape_.window ? position + 1 - shape_.window : 0;
  return oldest >= written_ - most_pages_ * kPage;
}

void KvCache::truncate(uint64_t position) noexcept {
  // Pages of a ring that has gone round hold what the next tokens see.
  if (position && wrapped()) return;
  dropped_ = std::min(dropped_, position / kPage);
  shrink(pages_for(position));
  written_ = position;
}

void KvCache::drop_before(uint64_t page) {
  for (; dropped_ < page; dropped_++) pages_[dropped_].reset();
}

}  // namespace cflow
