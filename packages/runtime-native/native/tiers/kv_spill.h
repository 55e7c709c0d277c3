// Offload of a session's KV cache that exceeds its memory limit. The oldest pages of full attention are written to disk
// when the session has no more urgent I/O, and are read back before their layer attends (PIPO's tracks of cache saves
// and loads, §5.1). Each session has its own I/O queue over its file, separate from the queue of the model's weights.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "fetch.h"
#include "kv_cache.h"
#include "spill.h"

namespace cflow {

/// Between batches one thread makes room; during one, who finishes a phase calls and releases while all others wait.
///
/// Pages 0 to spilled - 1 of every cache without a window are on disk only. A token attends over these caches in an
/// order that the program fixes, so staging areas are filled in that order, round and round: beyond a token's end too.
class KvSpill {
 public:
  /// @param caches of the session; outlive this
  /// @param attended [phase][]: the caches that a token attends over in each phase, in order of use
  /// @param context_length the most positions that a session has
  KvSpill(std::vector<KvCache>& caches, const std::vector<std::vector<uint32_t>>& attended, uint32_t context_length,
          const SpillOptions& options);
  /// Takes back what is queued and waits for what is under way.
  ~KvSpill();

  /// Whether tokens from `start` on, which take the caches to `positions`, can be appended within the memory.
  bool fits(uint64_t start, uint64_t positions) const { return target(start, positions).has_value(); }
  /// Frees what these tokens need, and starts to fetch for them. After a batch that was broken off, anew.
  /// @throws Error MEMORY (naming what would do), WRITE_FAILED, and what opening a file and its queue fails with
  void begin(uint64_t start, uint64_t positions);

  /// Whether pages are on disk only.
  bool spilled() const { return spilled_ > 0; }
  /// The largest position up to `position` that needs no page to be appended to which is on disk.
  uint64_t reachable(uint64_t position) const;
  /// Between batches: goes back to the first `position` positions, which are reachable; the caches follow. Waits for what
  /// is under way.
  void truncate(uint64_t position);

  /// Where the spilled pages of a cache are from now on; whoever reads one waits for it.
  void call(uint32_t cache);
  /// The step that used them has run.
  void release();

  /// Of staging areas.
  uint64_t bytes() const { return areas_.size() * spilled_ * page_bytes_; }
  SpillStats stats() const;

 private:
  /// A cache whose pages spill, and where they are on disk.
  struct Extent {
    uint32_t cache;
    uint64_t offset;
    uint64_t page_bytes;
  };
  /// Memory for the spilled pages of any one cache.
  struct Area final : StagedPages {
    Area(uint64_t bytes, StallClock& stalls) : memory(Block::untouched(bytes, "key/value caches")), stalls(stalls) {}
    uint8_t* page(uint64_t index) const override;

    const Block memory;
    StallClock& stalls;
    Transfer transfer;
    uint64_t page_bytes = 0;
    /// Pages 0 to loaded - 1 have been asked for.
    uint64_t loaded = 0;
  };

  uint64_t least(uint64_t start, uint64_t positions) const;
  std::optional<uint64_t> target(uint64_t start, uint64_t positions) const;
  uint64_t windowed(uint64_t positions) const;
  void open();
  void write(uint64_t until);
  void write_page(uint64_t page, Transfer& written, IoPriority priority);
  void hurry(uint64_t index);
  void drop(uint64_t until);
  void give_up_writes();
  bool sound() const;
  void restart();
  void fill();
  void load(uint64_t use);
  const Extent& extent(uint64_t use) const { return extents_[uses_[use % uses_.size()]]; }
  Area& area(uint64_t use) const { return *areas_[use % areas_.size()]; }

  std::vector<KvCache>& caches_;
  const SpillOptions options_;
  std::vector<Extent> extents_;
  /// Extents by attention of a token, in order.
  std::vector<uint32_t> uses_;
  /// A page of all of them together; the largest of one.
  uint64_t all_page_bytes_ = 0;
  uint64_t page_bytes_ = 0;
  /// Of the longest context.
  const uint64_t most_pages_;
  /// Those that are in use, and as many that come next.
  uint64_t area_count_ = 0;

  uint64_t spilled_ = 0;
  /// Uses so far, which go round: those before `released_` have run, those before `filled_` have an area.
  uint64_t released_ = 0;
  uint64_t filled_ = 0;

  std::unique_ptr<SpillFile> file_;
  std::unique_ptr<IoQueue> io_;
  std::vector<std::unique_ptr<Area>> areas_;
  /// Of pages spilled_ and on, which are in memory too.
  std::deque<Transfer> writes_;
  mutable StallClock stalls_;
};

}  // namespace cflow
