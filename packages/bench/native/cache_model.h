// Two levels of set-associative caches with least-recently-used replacement, and a prefetcher of ascending lines: what
// a stream of addresses costs, on any machine the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cflow {

constexpr uint64_t kCacheLine = 64;

struct CacheGeometry {
  uint64_t bytes;
  /// bytes / (ways * kCacheLine), the number of sets, is a power of two.
  uint64_t ways;

  uint64_t sets() const { return bytes / (ways * kCacheLine); }
};

class LruCache {
 public:
  explicit LruCache(CacheGeometry shape)
      : ways_(shape.ways), mask_(shape.sets() - 1), lines_(shape.sets() * shape.ways, kNone) {}

  /// Makes `line` the most recently used of its set, in place of the least recently used one if it is not there.
  /// True if it was.
  bool touch(uint64_t line) {
    uint64_t* set = &lines_[(line & mask_) * ways_];
    uint64_t moved = line;
    for (uint64_t way = 0; way < ways_; way++) {
      const uint64_t was = set[way];
      set[way] = moved;
      if (was == line) return true;
      moved = was;
    }
    return false;
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t ways_, mask_;
  /// [set][way], most recently used first.
  std::vector<uint64_t> lines_;
};

/// Sixteen streams of ascending lines, each within a page of 4 KiB. A line that is up to `kWindow` above the highest
/// one met in its page asks for the `kAhead` lines that follow it.
class StreamPrefetcher {
 public:
  static constexpr uint64_t kWindow = 4;
  static constexpr uint64_t kAhead = 2;

  /// Calls fetch(line) for what is to be fetched after an access to `line`.
  template <class Fetch>
  void access(uint64_t line, Fetch fetch) {
    Stream& stream = stream_of(line);
    stream.used = ++clock_;
    if (line <= stream.highest) return;
    const bool near = line - stream.highest <= kWindow;
    stream.highest = line;
    if (!near) return;
    for (uint64_t next = line + 1; next <= line + kAhead && next / kPageLines == stream.page; next++) fetch(next);
  }

 private:
  static constexpr uint64_t kPageLines = 4096 / kCacheLine;
  struct Stream {
    uint64_t page = 0, highest = 0;
    /// When it was last met; 0 = never.
    uint64_t used = 0;
  };

  /// The stream of the line's page; a new one, which begins with the line, in place of the one not met for longest.
  Stream& stream_of(uint64_t line) {
    const uint64_t page = line / kPageLines;
    Stream* oldest = &streams_[0];
    for (Stream& stream : streams_) {
      if (stream.used && stream.page == page) return stream;
      if (stream.used < oldest->used) oldest = &stream;
    }
    *oldest = {page, line, 0};
    return *oldest;
  }

  Stream streams_[16];
  uint64_t clock_ = 0;
};

/// Of one region of memory.
struct CacheCounts {
  uint64_t reads = 0;
  /// Lines that reads did not find in the first cache, and in neither.
  uint64_t misses = 0, misses_beyond = 0;
};

class CacheModel {
 public:
  /// @param prefetcher whether accesses to ascending lines fetch what follows them
  CacheModel(CacheGeometry first, CacheGeometry second, bool prefetcher)
      : first_(first), second_(second), prefetches_(prefetcher) {}

  void read(uint64_t address, uint64_t bytes, CacheCounts& counts) {
    counts.reads++;
    access(address, bytes, counts);
  }
  /// Lines that are missing are fetched, and do not count.
  void write(uint64_t address, uint64_t bytes) {
    CacheCounts none;
    access(address, bytes, none);
  }
  /// Into the second cache.
  void prefetch(uint64_t address) { second_.touch(address / kCacheLine); }

 private:
  void access(uint64_t address, uint64_t bytes, CacheCounts& counts) {
    for (uint64_t line = address / kCacheLine; line <= (address + bytes - 1) / kCacheLine; line++) {
      if (!first_.touch(line)) {
        counts.misses++;
        counts.misses_beyond += !second_.touch(line);
      }
      if (prefetches_) streams_.access(line, [this](uint64_t ahead) { fetch(ahead); });
    }
  }
  void fetch(uint64_t line) {
    first_.touch(line);
    second_.touch(line);
  }

  LruCache first_, second_;
  StreamPrefetcher streams_;
  bool prefetches_;
};

}  // namespace cflow
