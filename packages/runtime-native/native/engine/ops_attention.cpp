// Causal attention over a paged cache. A unit is one kv head and a block of tokens: the queries of a unit share every
// key and value that they read.
#include <algorithm>

#include "../tiers/kv_spill.h"
#include "ops.h"
#include "ops_make.h"

namespace cflow {

namespace {

/// Queries of a unit, at most, unless one token of a kv head has more: bounds the scores, [queries, positions].
constexpr uint32_t kQueries = 16;

class AttendOp final : public ParallelOp {
 public:
  AttendOp(const step::Attend& s, const CacheShape& shape, const Context& context)
      : context_(context), step_(s), shape_(shape), group_(s.heads / shape.kv_heads) {
    const uint64_t width = uint64_t{s.heads} * shape.head_dim;
    check_input(context, s.q, width, name());
    check_output(context, s.out, width, name());
    if (group_ * shape.kv_heads != s.heads) throw Error("INTERNAL", "query heads are no multiple of kv heads");
    if (shape.window && (s.window == 0 || s.window > shape.window)) {
      throw Error("INTERNAL", "attention looks further back than its cache");
    }
  }

  const char* name() const override { return "attention"; }

  uint32_t prepare(const Batch& batch) override {
    const uint32_t most = std::max(1u, kQueries / group_);
    blocks_.clear();
    for (const Span& span : batch.rows->spans()) {
      for (uint32_t first = span.first; first < span.end; first += most) {
        blocks_.push_back({span.piece, first, std::min(first + most, span.end), span.position + (first - span.first)});
      }
    }
    if (waits()) {
      for (const Piece& piece : batch.pieces) piece.spill->call(step_.cache);
    }
    return static_cast<uint32_t>(blocks_.size()) * shape_.kv_heads;
  }
  uint64_t bytes() const override { return 0; }
  uint64_t work(const Batch& batch) const override {
    uint64_t read = 0;
    for (const Span& span : batch.rows->spans()) {
      const uint64_t last = span.position + (span.end - span.first);
      const uint64_t seen = step_.window ? std::min<uint64_t>(step_.window, last) : last;
      read += std::max(1u, (span.end - span.first) / kTokensPerRead) * seen;
    }
    return read * shape_.kv_heads * shape_.head_dim * 2 * (context_.cache == CacheType::f16 ? 2 : 4);
  }
  bool waits() const override { return context_.spills && shape_.window == 0; }
  void finish(const Batch& batch) override {
    if (!waits()) return;
    for (const Piece& piece : batch.pieces) piece.spill->release();
  }

  void run(const Batch& batch, uint32_t unit, Scratch& scratch) const override {
    const auto blocks = static_cast<uint32_t>(blocks_.size());
    const uint32_t head = unit / blocks;
    const Span& block = blocks_[unit % blocks];
    const uint32_t tokens = block.end - block.first;
    const uint64_t last = block.position + tokens - 1;
    const uint64_t from = oldest(block.position) / kPage * kPage;
    const KvCache& cache = batch.cache(block.piece, step_.cache);
    const auto stride = static_cast<size_t>(last / kPage * kPage + kPage - from);
    // Queries at a time: as many as the kernels like to share a key among.
    const uint32_t queries = tokens * group_;
    scratch.scores.resize(std::max(scratch.scores.size(), kQueries * stride));
    for (uint32_t q = 0; q < queries; q += kQueries) {
      run_queries(cache, head, block, q, std::min(kQueries, queries - q), from, last, stride, scratch);
    }
  }

 private:
  /// The oldest position that a query at `position` sees.
  uint64_t oldest(uint64_t position) const {
    return step_.window && position >= step_.window ? position - step_.window + 1 : 0;
  }

  void run_queries(const KvCache& cache, uint32_t head, const Span& block, uint32_t query, uint32_t count, uint64_t from,
                   uint64_t last, size_t stride, Scratch& scratch) const {
    const auto type = static_cast<size_t>(context_.cache);
    const auto dim = static_cast<int>(shape_.head_dim);
    const float* qs[kQueries];
    float* outs[kQueries];
    uint64_t positions[kQueries];
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t token = (query + i) / group_;
      const size_t at = (size_t{head} * group_ + (query + i) % group_) * shape_.head_dim;
      qs[i] = context_.buffers.row(step_.q, block.first + token) + at;
      outs[i] = context_.buffers.row(step_.out, block.first + token) + at;
      positions[i] = block.position + token;
    }
    float* scores = scratch.scores.data();
    const auto score = [&](uint64_t begin, uint64_t end) {
      for (uint64_t page = begin; page < end; page += kPage) {
        const int seen = static_cast<int>(std::min<uint64_t>(kPage, last + 1 - page));
        context_.kernels.scores[type](qs, static_cast<int>(count), cache.keys(head, page), dim, seen, step_.scale,
                                      scores + (page - from), stride);
      }
    };
    // What comes from the disk last: it may still be on its way.
    const uint64_t kept = std::max(from, cache.kept_from());
    score(kept, last + 1);
    score(from, kept);
    for (uint32_t i = 0; i < count; i++) weigh(scores + i * stride, positions[i], from, last);
    for (uint32_t i = 0; i < count; i++) std::fill_n(outs[i], dim, 0.0f);
    for (uint64_t page = from; page <= last; page += kPage) {
      const int seen = static_cast<int>(std::min<uint64_t>(kPage, last + 1 - page));
      context_.kernels.mix[type](scores + (page - from), stride, static_cast<int>(count), cache.values(head, page), dim, 0,
                                 seen, outs);
    }
  }

  /// Scores of one query to shares: nothing before its window and after its position.
  void weigh(float* scores, uint64_t position, uint64_t from, uint64_t last) const {
    const size_t begin = oldest(position) - from;
    const size_t end = position + 1 - from;
    if (step_.softcap > 0) context_.kernels.softcap(scores + begin, end - begin, step_.softcap);
    context_.kernels.softmax(scores + begin, end - begin);
    std::fill(scores, scores + begin, 0.0f);
    std::fill(scores + end, scores + (last + 1 - from), 0.0f);
  }

  const Context context_;
  const step::Attend step_;
  const CacheShape shape_;
  /// Query heads that share a kv head.
  const uint32_t group_;
  /// Of the batch: rows of a piece that share the keys that they read.
  std::vector<Span> blocks_;
};

}  // namespace

std::unique_ptr<ParallelOp> make_op(const step::Attend& s, const Program& program, const Context& context) {
  if (s.cache >= program.caches.size() || program.caches[s.cache].kv_heads == 0) {
    throw Error("INTERNAL", "attention over a cache that does not exist");
  }
  return std::make_unique<AttendOp>(s, program.caches[s.cache], context);
}

}  // namespace cflow
