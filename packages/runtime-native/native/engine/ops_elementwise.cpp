// Operations on the vectors of single tokens.
#include <algorithm>
#include <cmath>

#include "ops.h"
#include "ops_make.h"

namespace cflow {

namespace {

class EmbedOp final : public TokenOp {
 public:
  EmbedOp(const step::Embed& s, const Context& context)
      : context_(context), matrix_(s.matrix, kInMemory, context), scale_(s.scale), out_(s.out) {
    check_output(context, s.out, s.matrix.cols, name());
  }
  const char* name() const override { return "embed"; }
  void run(const Batch& batch, uint32_t first, uint32_t end) const override {
    const auto dequantize = context_.kernels.dequantize_row[static_cast<size_t>(context_.dtype)];
    for (uint32_t t = first; t < end; t++) {
      const auto id = static_cast<uint32_t>(batch.row(t).id);
      const uint32_t stripe = id / kTileRows;
      float* out = context_.buffers.row(out_, t);
      const uint8_t* weights = matrix_.base() + matrix_.stripe(stripe);
      dequantize(weights, matrix_.stripe_rows(stripe), matrix_.cols(), static_cast<int>(id % kTileRows), out);
      if (scale_ == 1) continue;
      for (int i = 0; i < matrix_.cols(); i++) out[i] *= scale_;
    }
  }

 private:
  const Context context_;
  const Tiles matrix_;
  const float scale_;
  const BufferId out_;
};

class RmsNormOp final : public TokenOp {
 public:
  RmsNormOp(const step::RmsNorm& s, const Context& context)
      : context_(context), step_(s), weight_(weight_floats(context, s.weight, s.weight_length)) {
    const uint32_t length = context.buffers.length(s.input);
    check_output(context, s.out, length, name());
    if (s.group_size == 0 || length % s.group_size ||
        (weight_ && s.weight_length != s.group_size && s.weight_length != length)) {
      throw Error("INTERNAL", "a norm's groups or weights do not fit its buffer");
    }
  }
  const char* name() const override { return "norm"; }
  void run(const Batch&, uint32_t first, uint32_t end) const override {
    const uint32_t length = context_.buffers.length(step_.input);
    const uint32_t size = step_.group_size;
    for (uint32_t t = first; t < end; t++) {
      const float* in = context_.buffers.row(step_.input, t);
      float* out = context_.buffers.row(step_.out, t);
      for (uint32_t i = 0; i < length; i += size) {
        // A weight of one group serves every group; a longer one covers the whole buffer.
        const float* weight = weight_ ? weight_ + (step_.weight_length == size ? 0 : i) : nullptr;
        context_.kernels.rms_norm(in + i, weight, size, step_.eps, out + i);
      }
    }
  }

 private:
  const Context context_;
  const step::RmsNorm step_;
  const float* const weight_;
};

class QuantizeOp final : public TokenOp {
 public:
  QuantizeOp(const step::Quantize& s, const Context& context) : context_(context), step_(s) {
    stride_ = s.parts == 1 ? 0 : context.buffers.length(s.input) / s.parts;
    if (s.parts == 0 || s.part_length == 0 || (s.parts == 1 ? context.buffers.length(s.input) : stride_) < s.part_length) {
      throw Error("INTERNAL", "a buffer is shorter than its quantized form");
    }
    if (context.buffers.parts(s.input) != s.parts || context.buffers.part_length(s.input) != s.part_length) {
      throw Error("INTERNAL", "a buffer is quantized in two ways, or under f32 arithmetic");
    }
  }
  const char* name() const override { return "quantize"; }
  void run(const Batch&, uint32_t first, uint32_t end) const override {
    for (uint32_t t = first; t < end; t++) {
      const float* in = context_.buffers.row(step_.input, t);
      for (uint32_t part = 0; part < step_.parts; part++) {
        context_.kernels.quantize_row(context_.dtype, in + size_t{part} * stride_, static_cast<int>(step_.part_length),
                                      context_.buffers.quantized(step_.input, t, part));
      }
    }
  }

 private:
  const Context context_;
  const step::Quantize step_;
  uint32_t stride_;
};

class RopeOp final : public TokenOp {
 public:
  RopeOp(const step::Rope& s, const Program& program, const Context& context) : context_(context), step_(s) {
    if (s.table >= program.ropes.size()) throw Error("INTERNAL", "a rope table that does not exist");
    half_ = program.ropes[s.table].size();
    if (s.head_dim == 0 || context.buffers.length(s.buffer) % s.head_dim || 2 * half_ > s.head_dim) {
      throw Error("INTERNAL", "a rope does not fit its heads");
    }
  }
  const char* name() const override { return "rope"; }
  void run(const Batch&, uint32_t first, uint32_t end) const override {
    const uint32_t length = context_.buffers.length(step_.buffer);
    for (uint32_t t = first; t < end; t++) {
      const float* cosines = context_.buffers.rope_row(step_.table, t);
      float* heads = context_.buffers.row(step_.buffer, t);
      for (uint32_t head = 0; head < length; head += step_.head_dim) {
        context_.kernels.rope(heads + head, cosines, cosines + half_, half_);
      }
    }
  }

 private:
  const Context context_;
  const step::Rope step_;
  size_t half_;
};

class AppendOp final : public TokenOp {
 public:
  AppendOp(const step::Append& s, const Program& program, const Context& context) : context_(context), step_(s) {
    if (s.cache >= program.caches.size()) throw Error("INTERNAL", "a cache that does not exist");
    const CacheShape& shape = program.caches[s.cache];
    check_input(context, s.k, uint64_t{shape.kv_heads} * shape.head_dim, name());
    check_input(context, s.v, uint64_t{shape.kv_heads} * shape.head_dim, name());
  }
  const char* name() const override { return "append"; }
  void run(const Batch& batch, uint32_t first, uint32_t end) const override {
    const auto type = static_cast<size_t>(context_.cache);
    for (uint32_t t = first; t < end; t++) {
      const uint64_t position = batch.row(t).position;
      const KvCache& cache = batch.cache(batch.row(t).piece, step_.cache);
      const auto dim = static_cast<int>(cache.shape().head_dim);
      const auto slot = static_cast<int>(position % kPage);
      const float* k = context_.buffers.row(step_.k, t);
      const float* v = context_.buffers.row(step_.v, t);
      if (context_.cache == CacheType::f16 && !(fits_f16(k, step_.k) && fits_f16(v, step_.v))) batch.report(Fault::cache, batch.row(t));
      for (uint32_t head = 0; head < cache.shape().kv_heads; head++, k += dim, v += dim) {
        context_.kernels.store_key[type](k, dim, slot, cache.keys(head, position));
        context_.kernels.store_value[type](v, dim, slot, cache.values(head, position));
      }
    }
  }

 private:
  /// NaN passes: it is reported where it came from.
  bool fits_f16(const float* values, BufferId buffer) const {
    bool fits = true;
    for (uint32_t i = 0; i < context_.buffers.length(buffer); i++) fits &= !(std::fabs(values[i]) > kLargestF16);
    return fits;
  }
  static constexpr float kLargestF16 = 65504;
  const Context context_;
  const step::Append step_;
};

class GluOp final : public TokenOp {
 public:
  GluOp(const step::Glu& s, const Context& context)
      : context_(context), step_(s), glu_(context.kernels.glu[static_cast<size_t>(s.activation)]) {
    const uint32_t length = context.buffers.length(s.gate);
    check_output(context, s.out, length, name());
    if (s.up_from > context.buffers.length(s.up) || context.buffers.length(s.up) - s.up_from < length) {
      throw Error("INTERNAL", "a glu reads beyond its buffer");
    }
  }
  const char* name() const override { return "glu"; }
  void run(const Batch&, uint32_t first, uint32_t end) const override {
    for (uint32_t t = first; t < end; t++) {
      glu_(context_.buffers.row(step_.gate, t), context_.buffers.row(step_.up, t) + step_.up_from,
           context_.buffers.length(step_.out), context_.buffers.row(step_.out, t));
    }
  }

 private:
  const Context context_;
  const step::Glu step_;
  void (*const glu_)(const float*, const float*, size_t, float*);
};

/// Some hundred logits at most: plain code, in double as the reference.
class RouteOp final : public TokenOp {
 public:
  RouteOp(const step::Route& s, const Context& context)
      : context_(context), step_(s), scale_(weight_floats(context, s.scale, context.buffers.length(s.logits))) {
    check_output(context, s.out, uint64_t{2} * s.top_k, name());
    if (s.top_k == 0 || s.top_k > context.buffers.length(s.logits)) throw Error("INTERNAL", "more chosen than experts");
  }
  const char* name() const override { return "route"; }
  void run(const Batch& batch, uint32_t first, uint32_t end) const override {
    for (uint32_t t = first; t < end; t++) {
      if (route(context_.buffers.row(step_.logits, t), context_.buffers.row(step_.out, t))) continue;
      batch.report(Fault::router, batch.row(t));
    }
  }

 private:
  /// Largest first, of equals the lower index. False if NaN leaves too few.
  bool route(const float* logits, float* out) const {
    const uint32_t count = context_.buffers.length(step_.logits);
    for (uint32_t j = 0; j < step_.top_k; j++) {
      int best = -1;
      for (uint32_t i = 0; i < count; i++) {
        const bool taken = std::find(out, out + j, static_cast<float>(i)) != out + j;
        if (taken || std::isnan(logits[i])) continue;
        if (best < 0 || logits[i] > logits[best]) best = static_cast<int>(i);
      }
      if (best < 0) {
        std::fill_n(out, 2 * step_.top_k, 0.0f);
        return false;
      }
      out[j] = static_cast<float>(best);
    }
    const double largest = logits[static_cast<uint32_t>(out[0])];
    double sum = 0;
    for (uint32_t i = 0; i < (step_.normalize ? step_.top_k : count); i++) {
      sum += std::exp(logits[step_.normalize ? static_cast<uint32_t>(out[i]) : i] - largest);
    }
    for (uint32_t j = 0; j < step_.top_k; j++) {
      const auto expert = static_cast<uint32_t>(out[j]);
      const double weight = std::exp(logits[expert] - largest) / sum;
      out[step_.top_k + j] = static_cast<float>(weight * (scale_ ? scale_[expert] : 1.0f));
    }
    return true;
  }

  const Context context_;
  const step::Route step_;
  const float* const scale_;
};

class SumOp final : public TokenOp {
 public:
  SumOp(const step::Sum& s, const Context& context) : context_(context), step_(s) {
    if (s.terms.empty() || s.terms.size() > kMostTerms || s.terms.size() != s.coefficients.size()) {
      throw Error("INTERNAL", "a sum of " + std::to_string(s.terms.size()) + " terms");
    }
    for (const BufferId term : s.terms) check_input(context, term, context.buffers.length(s.out), name());
    if (const float* scale = weight_floats(context, s.scale, 1)) {
      for (float& coefficient : step_.coefficients) coefficient *= *scale;
    }
  }
  const char* name() const override { return "sum"; }
  void run(const Batch&, uint32_t first, uint32_t end) const override {
    const float* terms[kMostTerms];
    for (uint32_t t = first; t < end; t++) {
      for (size_t i = 0; i < step_.terms.size(); i++) terms[i] = context_.buffers.row(step_.terms[i], t);
      context_.kernels.weighted_sum(terms, step_.coefficients.data(), static_cast<int>(step_.terms.size()),
                                    context_.buffers.length(step_.out), context_.buffers.row(step_.out, t));
    }
  }

 private:
  /// Residual, attention, FFN, and the experts of as many layers as a delay can bring together at the last.
  static constexpr size_t kMostTerms = 72;
  const Context context_;
  step::Sum step_;
};

class ClampOp final : public TokenOp {
 public:
  ClampOp(const step::Clamp& s, const Context& context) : context_(context), step_(s) {
    if (!(s.limit > 0)) throw Error("INTERNAL", "a clamp to a limit that is not positive");
  }
  const char* name() const override { return "clamp"; }
  void run(const Batch&, uint32_t first, uint32_t end) const override {
    for (uint32_t t = first; t < end; t++) {
      float* x = context_.buffers.row(step_.buffer, t);
      const uint32_t length = context_.buffers.length(step_.buffer);
      for (uint32_t i = 0; i < length; i++) x[i] = std::clamp(x[i], -step_.limit, step_.limit);
    }
  }

 private:
  const Context context_;
  const step::Clamp step_;
};

class SoftcapOp final : public TokenOp {
 public:
  SoftcapOp(const step::Softcap& s, const Context& context) : context_(context), step_(s) {}
  const char* name() const override { return "softcap"; }
  void run(const Batch&, uint32_t first, uint32_t end) const override {
    for (uint32_t t = first; t < end; t++) {
      context_.kernels.softcap(context_.buffers.row(step_.buffer, t), context_.buffers.length(step_.buffer), step_.cap);
    }
  }

 private:
  const Context context_;
  const step::Softcap step_;
};

class CopyOp final : public TokenOp {
 public:
  CopyOp(const step::Copy& s, const Context& context) : context_(context), step_(s) {
    const uint32_t room = context.buffers.length(s.out);
    if (s.at > room || room - s.at < context.buffers.length(s.input)) {
      throw Error("INTERNAL", "a copy does not fit its buffer");
    }
  }
  const char* name() const override { return "copy"; }
  void run(const Batch&, uint32_t first, uint32_t end) const override {
    for (uint32_t t = first; t < end; t++) {
      std::copy_n(context_.buffers.row(step_.input, t), context_.buffers.length(step_.input),
                  context_.buffers.row(step_.out, t) + step_.at);
    }
  }

 private:
  const Context context_;
  const step::Copy step_;
};

}  // namespace

std::unique_ptr<ParallelOp> make_parallel(const Step& step, const Program& program, const Context& context) {
  return std::visit(
      Overloads{
          [&](const step::Attend& s) { return make_op(s, program, context); },
          [&](const auto& s) -> std::unique_ptr<ParallelOp> {
            if constexpr (requires { make_op(s, context); }) return make_op(s, context);
            throw Error("INTERNAL", "a step that threads cannot share stands among the parallel ones");
          },
      },
      step);
}

std::unique_ptr<TokenOp> make_serial(const Step& step, const Program& program, const Context& context) {
  using Op = std::unique_ptr<TokenOp>;
  return std::visit(
      Overloads{
          [&](const step::Embed& s) -> Op { return std::make_unique<EmbedOp>(s, context); },
          [&](const step::RmsNorm& s) -> Op { return std::make_unique<RmsNormOp>(s, context); },
          [&](const step::Quantize& s) -> Op { return std::make_unique<QuantizeOp>(s, context); },
          [&](const step::PlainMatvec& s) -> Op { return make_small(s, context); },
          [&](const step::Rope& s) -> Op { return std::make_unique<RopeOp>(s, program, context); },
          [&](const step::Append& s) -> Op { return std::make_unique<AppendOp>(s, program, context); },
          [&](const step::Glu& s) -> Op { return std::make_unique<GluOp>(s, context); },
          [&](const step::Route& s) -> Op { return std::make_unique<RouteOp>(s, context); },
          [&](const step::Sum& s) -> Op { return std::make_unique<SumOp>(s, context); },
          [&](const step::Clamp& s) -> Op { return std::make_unique<ClampOp>(s, context); },
          [&](const step::Softcap& s) -> Op { return std::make_unique<SoftcapOp>(s, context); },
          [&](const step::Copy& s) -> Op { return std::make_unique<CopyOp>(s, context); },
          [](const auto&) -> Op { throw Error("INTERNAL", "a step that threads share stands among the serial ones"); },
      },
      step);
}

}  // namespace cflow
