// A model whose KV cache can be offloaded to disk: most of its layers attend over the whole sequence.
#pragma once

#include "engine-model.h"

namespace engine_test {

constexpr uint32_t kSpillLayers = 8, kLongContext = 1500;
/// Pages of 64 positions.
constexpr uint64_t kPositions = 64;

/// Layers 2 and 5 have windows; six have none, and share a key head among two query heads.
inline Model make_layers() {
  enum : BufferId { x, normed, q, k, v, heads, attn, logits };
  FileMaker file;
  Program p;
  p.dtype = Dtype::f32;
  constexpr uint32_t kQ = kHeads * kHeadDim, kKv = kKvHeads * kHeadDim;
  p.buffers = {kDim, kDim, kQ, kKv, kKv, kQ, kDim, kVocab};
  p.ropes = {{1.0, 0.5, 0.1, 0.01, 0.001, 0.0001}};
  const auto add = [&](Step step) {
    p.steps.push_back(std::move(step));
    return static_cast<uint32_t>(p.steps.size() - 1);
  };
  const auto norm = [&] { return add(step::RmsNorm{x, file.vector(kDim), kDim, kDim, 1e-5f, normed}); };
  const uint32_t embed = add(step::Embed{file.matrix(kVocab, kDim), 2.0f, x});
  p.phases.push_back({{}, {embed, norm()}, {}});
  for (uint32_t layer = 0; layer < kSpillLayers; layer++) {
    const uint32_t window = layer == 2 || layer == 5 ? kWindow : 0;
    p.caches.push_back({kKvHeads, kHeadDim, window});
    const TiledMatrix wq = file.matrix(kQ, kDim), wk = file.matrix(kKv, kDim), wv = file.matrix(kKv, kDim);
    const uint32_t project = add(step::Matvec{normed, {{q, wq, -1}, {k, wk, -1}, {v, wv, -1}}});
    const uint32_t rope_q = add(step::Rope{q, kHeadDim, 0});
    const uint32_t rope_k = add(step::Rope{k, kHeadDim, 0});
    p.phases.push_back({{project}, {rope_q, rope_k, add(step::Append{layer, k, v})}, {}});
    p.phases.push_back({{add(step::Attend{layer, q, heads, kHeads, 0.3f, 0, window})}, {}, {}});
    const uint32_t out = add(step::Matvec{heads, {{attn, file.matrix(kDim, kQ), -1}}});
    const uint32_t sum = add(step::Sum{{x, attn}, {1, 1}, x});
    p.phases.push_back({{out}, {sum, norm()}, {}});
  }
  p.head_phase = static_cast<uint32_t>(p.phases.size());
  p.phases.push_back({{add(step::Matvec{normed, {{logits, file.matrix(kVocab, kDim), -1}}})}, {}, {}});
  p.output = logits;
  p.vocab_size = kVocab;
  p.context_length = kLongContext;
  return {std::move(p), std::move(file.bytes)};
}

}  // namespace engine_test
