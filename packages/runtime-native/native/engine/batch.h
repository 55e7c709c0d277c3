// A batch: pieces of sequences whose tokens pass through the program together, and the rows that they become.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "../tiers/kv_cache.h"

namespace cflow {

class KvSpill;

/// What the numbers of a token can do wrong.
enum class Fault : uint8_t {
  /// Router logits are NaN.
  router,
  /// A key or value is too large for an f16 cache.
  cache,
};

/// The first faulty position of a sequence, whichever thread finds it.
class Faults {
 public:
  void clear() { first_.store(kNone, std::memory_order_relaxed); }
  bool any() const { return first_.load(std::memory_order_relaxed) != kNone; }
  uint64_t position() const { return first_.load(std::memory_order_relaxed) / 2; }
  Fault fault() const { return static_cast<Fault>(first_.load(std::memory_order_relaxed) % 2); }
  void report(Fault fault, uint64_t position) {
    const uint64_t found = 2 * position + static_cast<uint64_t>(fault);
    uint64_t first = first_.load(std::memory_order_relaxed);
    while (found < first && !first_.compare_exchange_weak(first, found, std::memory_order_relaxed)) {
    }
  }

 private:
  static constexpr uint64_t kNone = UINT64_MAX;
  /// 2 position + fault.
  std::atomic<uint64_t> first_{kNone};
};

/// Which logits of a piece are wanted.
enum class Logits : uint8_t { none, last, all };

/// Activations of quantized matrices: 15 bits (`Kernels::matvec`) for a token that is passed alone, 8 for a prompt
/// (`matmul`). It depends on the call alone, never on the batch, and so the bits of a sequence do not depend on others.
enum class Precision : uint8_t { fine, coarse };

/// Consecutive tokens of one sequence.
struct Piece {
  std::span<const int32_t> ids;
  /// Of the first token.
  uint64_t position;
  /// A fine piece has one token, and its logits are computed in any case.
  Precision precision;
  Logits logits;
  std::vector<KvCache>* caches;
  /// Null unless pages of the caches may be on disk.
  KvSpill* spill;
  const std::atomic<bool>* cancelled;
};

/// The token of a row.
struct Row {
  uint32_t piece;
  int32_t id;
  uint64_t position;
};

/// Rows first <= row < end: consecutive positions of one piece.
struct Span {
  uint32_t piece;
  uint32_t first;
  uint32_t end;
  uint64_t position;
};

/// The rows of a batch: coarse before fine ones, and those whose logits are wanted last, so that the head runs over them
/// alone.
class BatchRows {
 public:
  void lay_out(std::span<const Piece> pieces);

  uint32_t count() const { return static_cast<uint32_t>(rows_.size()); }
  const Row& operator[](uint32_t row) const { return rows_[row]; }
  std::span<const Span> spans() const { return spans_; }
  /// The first row of a piece that has logits.
  uint32_t output(size_t piece) const { return outputs_[piece]; }
  /// Where fine rows begin; in the head, the last token of a prompt is fine as well, unless all of its logits are wanted.
  uint32_t fine() const { return fine_; }
  /// Where rows with logits begin, and the fine ones among them.
  uint32_t head() const { return head_; }
  uint32_t head_fine() const { return head_fine_; }

 private:
  void add(std::span<const Piece> pieces, uint32_t piece, size_t from, size_t to);

  std::vector<Row> rows_;
  std::vector<Span> spans_;
  std::vector<uint32_t> outputs_;
  uint32_t fine_ = 0;
  uint32_t head_ = 0;
  uint32_t head_fine_ = 0;
};

/// Tokens that pass through the program together, and where the current phase stands in them.
struct Batch {
  std::span<const Piece> pieces;
  const BatchRows* rows;
  /// By piece.
  std::deque<Faults>* faults;
  /// The phase computes rows first <= row < end: all of them but in the head. Those from `fine` on are fine.
  uint32_t first;
  uint32_t fine;
  uint32_t end;

  uint32_t tokens() const { return end - first; }
  const Row& row(uint32_t index) const { return (*rows)[index]; }
  const KvCache& cache(uint32_t piece, uint32_t index) const { return (*pieces[piece].caches)[index]; }
  void report(Fault fault, const Row& row) const { (*faults)[row.piece].report(fault, row.position); }
};

}  // namespace cflow
