#include "batch.h"

namespace cflow {

void BatchRows::lay_out(std::span<const Piece> pieces) {
  rows_.clear();
  spans_.clear();
  outputs_.assign(pieces.size(), 0);
  const auto each = [&](Precision precision, auto&& visit) {
    for (uint32_t i = 0; i < pieces.size(); i++) {
      if (pieces[i].precision == precision) visit(i, pieces[i].logits, pieces[i].ids.size());
    }
  };
  each(Precision::coarse, [&](uint32_t i, Logits logits, size_t n) {
    if (logits != Logits::all) add(pieces, i, 0, logits == Logits::last ? n - 1 : n);
  });
  head_ = count();
  each(Precision::coarse, [&](uint32_t i, Logits logits, size_t n) {
    if (logits == Logits::all) add(pieces, i, 0, n);
  });
  head_fine_ = count();
  each(Precision::coarse, [&](uint32_t i, Logits logits, size_t n) {
    if (logits == Logits::last) add(pieces, i, n - 1, n);
  });
  fine_ = count();
  each(Precision::fine, [&](uint32_t i, Logits, size_t n) { add(pieces, i, 0, n); });
}

void BatchRows::add(std::span<const Piece> pieces, uint32_t piece, size_t from, size_t to) {
  if (from == to) return;
  outputs_[piece] = count();
  const uint64_t position = pieces[piece].position + from;
  // A prompt alone stays in one: attention shares the keys that it reads among the tokens of a span.
  const bool joins = !spans_.empty() && spans_.back().piece == piece;
  if (!joins) spans_.push_back({piece, count(), count(), position});
  for (size_t i = from; i < to; i++) rows_.push_back({piece, pieces[piece].ids[i], pieces[piece].position + i});
  spans_.back().end = count();
}

}  // namespace cflow
