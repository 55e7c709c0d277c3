#include "kv_spill.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace cflow {

namespace {

uint64_t pages_of(uint64_t positions) { return (positions + kPage - 1) / kPage; }

}  // namespace

uint8_t* KvSpill::Area::page(uint64_t index) const {
  if (transfer.pending()) stalls.time([&] { IoQueue::wait(transfer); });
  if (const int failure = transfer.failure()) {
    const char* why = failure == Transfer::kEarlyEnd ? "their file became shorter" : std::strerror(failure);
    throw Error("NOT_READABLE", std::string("cannot read keys and values back: ") + why,
                "check the disk, and try again");
  }
  return memory.data() + index * page_bytes;
}

KvSpill::KvSpill(std::vector<KvCache>& caches, const std::vector<std::vector<uint32_t>>& attended,
                 uint32_t context_length, const SpillOptions& options)
    : caches_(caches), options_(options), most_pages_(pages_of(context_length)) {
  std::vector<uint32_t> extent_of(caches.size());
  uint64_t end = 0;
  for (uint32_t cache = 0; cache < caches.size(); cache++) {
    if (caches[cache].shape().window) continue;
    const uint64_t bytes = align_io(caches[cache].page_bytes());
    extent_of[cache] = static_cast<uint32_t>(extents_.size());
    extents_.push_back({cache, end, bytes});
    end += most_pages_ * bytes;
    all_page_bytes_ += bytes;
    page_bytes_ = std::max(page_bytes_, bytes);
  }
  for (const std::vector<uint32_t>& phase : attended) {
    const size_t before = uses_.size();
    for (const uint32_t cache : phase) {
      if (caches[cache].shape().window == 0) uses_.push_back(extent_of[cache]);
    }
    area_count_ = std::max<uint64_t>(area_count_, 2 * (uses_.size() - before));
  }
}

KvSpill::~KvSpill() {
  // Areas may have been made for a queue that was then refused.
  if (!io_) return;
  give_up_writes();
  restart();
}

uint64_t KvSpill::windowed(uint64_t positions) const {
  uint64_t bytes = 0;
  for (const KvCache& cache : caches_) {
    if (cache.shape().window) bytes += cache.pages_for(positions) * cache.page_bytes();
  }
  return bytes;
}

uint64_t KvSpill::least(uint64_t start, uint64_t positions) const {
  const uint64_t whole = pages_of(positions) * all_page_bytes_;
  const uint64_t complete = start / kPage;
  const uint64_t spilled = whole - complete * all_page_bytes_ + area_count_ * complete * page_bytes_;
  return windowed(positions) + std::min(whole, spilled);
}

/// Pages that must be spilled; nothing if there is not enough memory whatever is spilled. One page of every cache that
/// goes frees its memory, and takes that of one page in every area.
std::optional<uint64_t> KvSpill::target(uint64_t start, uint64_t positions) const {
  const uint64_t whole = windowed(positions) + pages_of(positions) * all_page_bytes_;
  if (whole <= options_.cache_bytes) return spilled_;
  const uint64_t taken = area_count_ * page_bytes_;
  if (all_page_bytes_ <= taken) return std::nullopt;
  const uint64_t freed = all_page_bytes_ - taken;
  const uint64_t pages = (whole - options_.cache_bytes + freed - 1) / freed;
  if (pages > start / kPage) return std::nullopt;
  return std::max(pages, spilled_);
}

void KvSpill::begin(uint64_t start, uint64_t positions) {
  const auto pages = target(start, positions);
  if (!pages) {
    const std::string limit = std::to_string(options_.cache_bytes);
    const std::string needed = std::to_string(least(start, positions));
    throw Error("MEMORY", "keys and values of " + std::to_string(positions) + " positions need " + needed +
                              " bytes of memory at least, " + limit + " are allowed",
                "allow more memory for keys and values, or use a shorter context");
  }
  if (*pages > spilled_) {
    open();
    write(*pages);
    drop(*pages);
  }
  // What will have to go next is written while nobody waits for it.
  const auto next = target(start, positions + std::max<uint64_t>(positions - start, kPage));
  const uint64_t soon = std::min(next.value_or(start / kPage), start / kPage);
  if (soon > spilled_) {
    open();
    write(soon);
  }
  if (spilled_ == 0 || uses_.empty()) return;
  if (!sound()) restart();
  for (uint64_t use = released_; use < filled_; use++) load(use);
  fill();
}

void KvSpill::open() {
  if (io_) return;
  file_ = std::make_unique<SpillFile>(options_.directory);
  while (areas_.size() < area_count_) areas_.push_back(std::make_unique<Area>(most_pages_ * page_bytes_, stalls_));
  io_ = IoQueue::open(file_->fd(), options_.io);
}

void KvSpill::write(uint64_t until) {
  for (uint64_t page = spilled_ + writes_.size(); page < until; page++) {
    Transfer& written = writes_.emplace_back();
    try {
      write_page(page, written, IoPriority::spill);
    } catch (...) {
      writes_.pop_back();
      throw;
    }
  }
}

void KvSpill::write_page(uint64_t page, Transfer& written, IoPriority priority) {
  std::vector<IoRequest> requests;
  for (const auto& [cache, offset, bytes] : extents_) {
    requests.push_back({IoRequest::Kind::write, offset + page * bytes, bytes, caches_[cache].page(page)});
  }
  io_->submit(written, requests, priority);
}

/// Page `index` of those that are being written is waited for from now on. What failed while nobody waited may have
/// found the disk full; there may be room by now.
void KvSpill::hurry(uint64_t index) {
  Transfer& written = writes_[index];
  if (written.pending() || !written.failure()) return io_->promote(written, IoPriority::needed);
  written.reset();
  try {
    write_page(spilled_ + index, written, IoPriority::needed);
  } catch (...) {
    // It would pass for written.
    give_up_writes();
    throw;
  }
}

void KvSpill::drop(uint64_t until) {
  for (uint64_t i = 0; i < until - spilled_; i++) hurry(i);
  while (spilled_ < until) {
    const Transfer& written = writes_.front();
    if (written.pending()) stalls_.time([&] { IoQueue::wait(written); });
    if (const int failure = written.failure()) {
      // All is still in memory: another attempt writes it again.
      give_up_writes();
      throw Error("WRITE_FAILED",
                  "cannot write keys and values to " + options_.directory + ": " + std::strerror(failure),
                  "make room there, name another directory, or allow more memory for keys and values");
    }
    writes_.pop_front();
    spilled_++;
    for (const Extent& extent : extents_) caches_[extent.cache].drop_before(spilled_);
  }
}

void KvSpill::give_up_writes() {
  for (Transfer& transfer : writes_) io_->withdraw(transfer);
  for (const Transfer& transfer : writes_) IoQueue::wait(transfer);
  writes_.clear();
}

/// Whether the areas hold what the uses to come want: the last batch ended, and no read failed.
bool KvSpill::sound() const {
  if (released_ % uses_.size()) return false;
  return std::none_of(areas_.begin(), areas_.end(),
                      [](const auto& area) { return !area->transfer.pending() && area->transfer.failure(); });
}

void KvSpill::restart() {
  for (const auto& area : areas_) io_->withdraw(area->transfer);
  for (const auto& area : areas_) {
    IoQueue::wait(area->transfer);
    area->transfer.reset();
  }
  released_ = filled_ = 0;
}

void KvSpill::fill() {
  for (; filled_ < released_ + area_count_; filled_++) {
    Area& free = area(filled_);
    // Only after a batch that was broken off.
    if (free.transfer.pending()) io_->withdraw(free.transfer);
    IoQueue::wait(free.transfer);
    free.transfer.reset();
    free.page_bytes = extent(filled_).page_bytes;
    free.loaded = 0;
    load(filled_);
  }
}

/// Asks for what the area of a use lacks.
void KvSpill::load(uint64_t use) {
  Area& into = area(use);
  if (into.loaded >= spilled_) return;
  const uint64_t from = into.loaded * into.page_bytes;
  const IoRequest request{IoRequest::Kind::read, extent(use).offset + from, spilled_ * into.page_bytes - from,
                          into.memory.data() + from};
  io_->submit(into.transfer, {&request, 1}, IoPriority::ahead);
  into.loaded = spilled_;
}

uint64_t KvSpill::reachable(uint64_t position) const {
  const uint64_t page = position / kPage;
  return page < spilled_ ? page * kPage : position;
}

void KvSpill::truncate(uint64_t position) {
  if (!io_) return;
  give_up_writes();
  if (position / kPage >= spilled_) return;
  restart();
  spilled_ = position / kPage;
}

void KvSpill::call(uint32_t cache) {
  if (spilled_ == 0) return;
  for (uint64_t use = released_; use < filled_; use++) {
    if (extent(use).cache != cache) continue;
    if (area(use).transfer.pending()) io_->promote(area(use).transfer, IoPriority::needed);
    return caches_[cache].stage(&area(use));
  }
  throw Error("INTERNAL", "keys and values are used out of order");
}

void KvSpill::release() {
  if (spilled_ == 0) return;
  released_++;
  fill();
}

SpillStats KvSpill::stats() const {
  if (!io_) return {};
  const IoStats io = io_->stats();
  std::string reason = io.reason;
  if (file_->in_memory()) {
    const std::string tmpfs = options_.directory + " is a tmpfs: what is written there stays in memory";
    reason = tmpfs + (reason.empty() ? "" : "; " + reason);
  }
  return {io.bytes_written, io.bytes_read, stalls_.seconds(), io.busy_seconds, reason};
}

}  // namespace cflow
