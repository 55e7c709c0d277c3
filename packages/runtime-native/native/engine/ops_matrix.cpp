// Matrix operations: a unit is one output stripe of one matrix.
#include <algorithm>
#include <string>

#include "ops.h"
#include "ops_make.h"
#include "storage.h"

namespace cflow {

const uint8_t* weight_bytes(const Context& context, uint64_t offset, uint64_t length) {
  const uint64_t size = context.storage.weights().size();
  if (offset > size || length > size - offset) {
    throw Error("INTERNAL", "weights at " + std::to_string(offset) + " with " + std::to_string(length) +
                                " bytes are outside the file of " + std::to_string(size));
  }
  return context.storage.weights().at(offset, length);
}

const float* weight_floats(const Context& context, Offset offset, uint64_t count) {
  if (offset < 0) return nullptr;
  weight_bytes(context, static_cast<uint64_t>(offset), 4 * count);
  return context.storage.weights().floats(static_cast<uint64_t>(offset), count);
}

StripedMatrix::StripedMatrix(const TiledMatrix& matrix, Dtype dtype)
    : rows_(static_cast<int>(matrix.rows)), cols_(static_cast<int>(matrix.cols)) {
  if (matrix.rows == 0 || matrix.cols == 0 || matrix.rows > kMostElements || matrix.cols > kMostElements ||
      matrix.stripes.size() != static_cast<size_t>(ceil_div(rows_, kTileRows))) {
    throw Error("INTERNAL", "a matrix of " + std::to_string(matrix.rows) + " rows and " + std::to_string(matrix.cols) +
                                " columns has " + std::to_string(matrix.stripes.size()) + " stripes");
  }
  for (size_t i = 0; i < matrix.stripes.size(); i++) {
    const uint64_t bytes = stripe_bytes(dtype, stripe_rows(static_cast<uint32_t>(i)), cols_);
    // A sum that wraps would pass for one within the file.
    if (matrix.stripes[i] > INT64_MAX - bytes) throw Error("INTERNAL", "a stripe lies beyond any file");
    begin_ = std::min(begin_, matrix.stripes[i]);
    end_ = std::max(end_, matrix.stripes[i] + bytes);
    bytes_ += bytes;
  }
  stripes_ = matrix.stripes;
}

void StripedMatrix::count_from_begin() {
  for (uint64_t& stripe : stripes_) stripe -= begin_;
  end_ -= begin_;
  begin_ = 0;
}

Tiles::Tiles(const TiledMatrix& matrix, uint32_t stream, const Context& context)
    : StripedMatrix(matrix, context.dtype), stream_(stream) {
  if (stream == kInMemory) {
    base_ = weight_bytes(context, begin(), end() - begin());
    count_from_begin();
    return;
  }
  ring_ = context.storage.streams();
  if (!ring_ || end() > ring_->length(stream)) throw Error("INTERNAL", "a matrix reaches beyond its stream");
}

void multiply(const Context& context, Arithmetic arithmetic, const StripedMatrix& matrix, const uint8_t* base,
              uint32_t stripe, Precision precision, const void* const* in, uint32_t tokens, float* const* out) {
  const uint8_t* weights = base + matrix.stripe(stripe);
  const auto a = static_cast<size_t>(arithmetic);
  const auto d = static_cast<size_t>(context.dtype);
  const int rows = matrix.stripe_rows(stripe);
  const auto& kernels = precision == Precision::fine ? context.kernels.matvecs : context.kernels.matmul;
  kernels[a][d](weights, rows, matrix.cols(), in, static_cast<int>(tokens), out);
}

void check_input(const Context& context, BufferId input, uint64_t cols, const char* op) {
  if (context.buffers.length(input) == cols) return;
  throw Error("INTERNAL", std::string(op) + " reads a buffer of " + std::to_string(context.buffers.length(input)) +
                              ", its matrix has " + std::to_string(cols) + " columns");
}

void check_output(const Context& context, BufferId out, uint64_t rows, const char* op) {
  if (context.buffers.length(out) == rows) return;
  throw Error("INTERNAL", std::string(op) + " writes a buffer of " + std::to_string(context.buffers.length(out)) +
                              ", its matrix has " + std::to_string(rows) + " rows");
}

void check_activations(const Context& context, BufferId input, uint32_t cols, const char* op) {
  check_input(context, input, cols, op);
  if (context.buffers.arithmetic(input) == Arithmetic::f32) return;
  if (context.buffers.parts(input) == 1 && context.buffers.part_length(input) == cols) return;
  throw Error("INTERNAL", std::string(op) + " reads a buffer of which " +
                              std::to_string(context.buffers.part_length(input)) + " elements are quantized, its matrix has " +
                              std::to_string(cols) + " columns");
}

namespace {

void add_bias(const float* bias, int rows, uint32_t tokens, float* const* out) {
  if (!bias) return;
  for (uint32_t t = 0; t < tokens; t++) {
    for (int r = 0; r < rows; r++) out[t][r] += bias[r];
  }
}

/// Calls body(precision, first row, rows) for blocks of at most kTokenBlock rows of one precision.
template <typename Body>
void by_blocks(const Batch& batch, Body&& body) {
  const auto blocks = [&](Precision precision, uint32_t first, uint32_t end) {
    for (uint32_t t = first; t < end; t += kTokenBlock) body(precision, t, std::min(kTokenBlock, end - t));
  };
  blocks(Precision::coarse, batch.first, batch.fine);
  blocks(Precision::fine, batch.fine, batch.end);
}

class MatvecOp final : public ParallelOp {
 public:
  MatvecOp(const step::Matvec& s, const Context& context)
      : context_(context), input_(s.input), fetched_(s.stream != kInMemory) {
    for (const step::MatvecOutput& out : s.outs) {
      check_activations(context, s.input, out.matrix.cols, name());
      check_output(context, out.out, out.matrix.rows, name());
      outs_.push_back({out.out, Tiles(out.matrix, s.stream, context), weight_floats(context, out.bias, out.matrix.rows)});
      bytes_ += outs_.back().matrix.bytes();
    }
    for (uint32_t i = 0; i < outs_.size(); i++) {
      for (uint32_t stripe = 0; stripe < outs_[i].matrix.stripes(); stripe++) units_.push_back({i, stripe});
    }
    // In the order of the file: neighbours share pages, and the hardware's prefetcher goes on from one to the next.
    const auto place = [&](const Unit& unit) { return s.outs[unit.out].matrix.stripes[unit.stripe]; };
    std::sort(units_.begin(), units_.end(), [&](const Unit& a, const Unit& b) { return place(a) < place(b); });
  }

  const char* name() const override { return "matvec"; }
  uint32_t prepare(const Batch&) override { return static_cast<uint32_t>(units_.size()); }
  uint64_t bytes() const override { return bytes_; }
  bool waits() const override { return fetched_; }

  void run(const Batch& batch, uint32_t index, Scratch& scratch) const override {
    const Unit unit = units_[index];
    const Out& out = outs_[unit.out];
    const uint8_t* base = out.matrix.base();
    const uint32_t row = unit.stripe * kTileRows;
    by_blocks(batch, [&](Precision precision, uint32_t first, uint32_t tokens) {
      for (uint32_t t = 0; t < tokens; t++) {
        scratch.in[t] = context_.buffers.activations(input_, first + t);
        scratch.out[t] = context_.buffers.row(out.out, first + t) + row;
      }
      multiply(context_, context_.buffers.arithmetic(input_), out.matrix, base, unit.stripe, precision, scratch.in, tokens, scratch.out);
      add_bias(out.bias ? out.bias + row : nullptr, out.matrix.stripe_rows(unit.stripe), tokens, scratch.out);
    });
  }

 private:
  struct Out {
    BufferId out;
    Tiles matrix;
    const float* bias;
  };
  struct Unit {
    uint32_t out;
    uint32_t stripe;
  };
  const Context context_;
  const BufferId input_;
  const bool fetched_;
  std::vector<Out> outs_;
  std::vector<Unit> units_;
  uint64_t bytes_ = 0;
};

class GatedMatvecOp final : public ParallelOp {
 public:
  GatedMatvecOp(const step::GatedMatvec& s, const Context& context)
      : context_(context),
        input_(s.input),
        out_(s.out),
        fetched_(s.stream != kInMemory),
        gate_(s.gate, s.stream, context),
        up_(s.up, s.stream, context),
        gate_bias_(weight_floats(context, s.gate_bias, s.gate.rows)),
        up_bias_(weight_floats(context, s.up_bias, s.up.rows)),
        glu_(context.kernels.glu[static_cast<size_t>(s.activation)]) {
    check_activations(context, s.input, s.gate.cols, name());
    check_activations(context, s.input, s.up.cols, name());
    check_output(context, s.out, s.gate.rows, name());
    check_output(context, s.out, s.up.rows, name());
  }

  const char* name() const override { return "gated matvec"; }
  uint32_t prepare(const Batch&) override { return gate_.stripes(); }
  uint64_t bytes() const override { return gate_.bytes() + up_.bytes(); }
  bool waits() const override { return fetched_; }

  void run(const Batch& batch, uint32_t stripe, Scratch& scratch) const override {
    const int rows = gate_.stripe_rows(stripe);
    const uint8_t* gate = gate_.base();
    const uint8_t* up = up_.base();
    const Arithmetic arithmetic = context_.buffers.arithmetic(input_);
    float* ups[kTokenBlock];
    by_blocks(batch, [&](Precision precision, uint32_t first, uint32_t tokens) {
      for (uint32_t t = 0; t < tokens; t++) {
        scratch.in[t] = context_.buffers.activations(input_, first + t);
        scratch.out[t] = context_.buffers.row(out_, first + t) + size_t{stripe} * kTileRows;
        ups[t] = scratch.second + size_t{t} * kTileRows;
      }
      multiply(context_, arithmetic, gate_, gate, stripe, precision, scratch.in, tokens, scratch.out);
      multiply(context_, arithmetic, up_, up, stripe, precision, scratch.in, tokens, ups);
      add_bias(gate_bias_ ? gate_bias_ + size_t{stripe} * kTileRows : nullptr, rows, tokens, scratch.out);
      add_bias(up_bias_ ? up_bias_ + size_t{stripe} * kTileRows : nullptr, rows, tokens, ups);
      for (uint32_t t = 0; t < tokens; t++) glu_(scratch.out[t], ups[t], static_cast<size_t>(rows), scratch.out[t]);
    });
  }

 private:
  const Context context_;
  const BufferId input_;
  const BufferId out_;
  const bool fetched_;
  const Tiles gate_;
  const Tiles up_;
  const float* const gate_bias_;
  const float* const up_bias_;
  void (*const glu_)(const float*, const float*, size_t, float*);
};

/// Rows of a row-major f32 matrix: shared out when it is large, run in one go when not.
class PlainRows {
 public:
  PlainRows(const step::PlainMatvec& s, const Context& context)
      : context_(context), input_(s.input), out_(s.out), rows_(s.rows), cols_(s.cols) {
    check_input(context, s.input, s.cols, "plain matvec");
    check_output(context, s.out, s.rows, "plain matvec");
    weight_ = weight_floats(context, s.weight, uint64_t{s.rows} * s.cols);
    if (!weight_) throw Error("INTERNAL", "a plain matvec without weights");
  }

  uint32_t rows() const { return rows_; }
  uint64_t bytes() const { return uint64_t{4} * rows_ * cols_; }

  void run(uint32_t row, uint32_t end_row, uint32_t first, uint32_t end) const {
    for (; row < end_row; row++) {
      const float* weights = weight_ + size_t{row} * cols_;
      for (uint32_t t = first; t < end; t++) {
        context_.buffers.row(out_, t)[row] = context_.kernels.dot(weights, context_.buffers.row(input_, t), cols_);
      }
    }
  }

 private:
  const Context context_;
  const BufferId input_;
  const BufferId out_;
  const uint32_t rows_;
  const uint32_t cols_;
  const float* weight_ = nullptr;
};

class PlainMatvecOp final : public ParallelOp {
 public:
  PlainMatvecOp(const step::PlainMatvec& s, const Context& context) : rows_(s, context) {}
  const char* name() const override { return "plain matvec"; }
  uint32_t prepare(const Batch&) override { return (rows_.rows() + kRows - 1) / kRows; }
  uint64_t bytes() const override { return rows_.bytes(); }
  void run(const Batch& batch, uint32_t unit, Scratch&) const override {
    const uint32_t row = unit * kRows;
    rows_.run(row, std::min(row + kRows, rows_.rows()), batch.first, batch.end);
  }

 private:
  static constexpr uint32_t kRows = 8;
  const PlainRows rows_;
};

class SmallPlainMatvecOp final : public TokenOp {
 public:
  SmallPlainMatvecOp(const step::PlainMatvec& s, const Context& context) : rows_(s, context) {}
  const char* name() const override { return "plain matvec"; }
  void run(const Batch&, uint32_t first, uint32_t end) const override { rows_.run(0, rows_.rows(), first, end); }

 private:
  const PlainRows rows_;
};

}  // namespace

std::unique_ptr<ParallelOp> make_op(const step::Matvec& s, const Context& context) {
  return std::make_unique<MatvecOp>(s, context);
}
std::unique_ptr<ParallelOp> make_op(const step::GatedMatvec& s, const Context& context) {
  return std::make_unique<GatedMatvecOp>(s, context);
}
std::unique_ptr<ParallelOp> make_op(const step::PlainMatvec& s, const Context& context) {
  return std::make_unique<PlainMatvecOp>(s, context);
}
std::unique_ptr<TokenOp> make_small(const step::PlainMatvec& s, const Context& context) {
  return std::make_unique<SmallPlainMatvecOp>(s, context);
}

}  // namespace cflow
