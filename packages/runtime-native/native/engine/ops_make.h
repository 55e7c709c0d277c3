// What the files of operations share: striped matrices, and the constructor of each operation.
#pragma once

#include <memory>
#include <vector>

#include "ops.h"
#include "storage.h"

namespace cflow {

/// Elements of a buffer, rows and columns of a matrix: far beyond any model, and their products with a batch fit 64 bits.
constexpr uint32_t kMostElements = 1u << 28;

/// A tiled matrix, by output stripe.
class StripedMatrix {
 public:
  /// @throws Error INTERNAL if the stripes are not as many as the rows want
  StripedMatrix(const TiledMatrix& matrix, Dtype dtype);

  int cols() const { return cols_; }
  int rows() const { return rows_; }
  uint32_t stripes() const { return static_cast<uint32_t>(ceil_div(rows_, kTileRows)); }
  int stripe_rows(uint32_t stripe) const {
    const int left = rows_ - static_cast<int>(stripe) * kTileRows;
    return left < kTileRows ? left : kTileRows;
  }
  /// Byte offset from wherever the program counts.
  uint64_t stripe(uint32_t index) const { return stripes_[index]; }
  /// All stripes lie in [begin, end).
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  uint64_t bytes() const { return bytes_; }

 protected:
  /// Counts offsets from the first stripe.
  void count_from_begin();

 private:
  int rows_;
  int cols_;
  std::vector<uint64_t> stripes_;
  uint64_t begin_ = UINT64_MAX;
  uint64_t end_ = 0;
  uint64_t bytes_ = 0;
};

/// A tiled matrix in memory, or in a stream that comes and goes.
class Tiles : public StripedMatrix {
 public:
  /// @throws Error INTERNAL if it does not fit the file or the stream
  Tiles(const TiledMatrix& matrix, uint32_t stream, const Context& context);
  /// What the offsets of stripes are added to; waits for a stream. @throws Error NOT_READABLE
  const uint8_t* base() const { return ring_ ? ring_->wait(stream_) : base_; }

 private:
  const uint8_t* base_ = nullptr;
  const StreamRing* ring_ = nullptr;
  uint32_t stream_;
};

/// out[t][r] of one stripe, for tokens vectors. `base`: what the matrix's offsets are added to.
void multiply(const Context& context, Arithmetic arithmetic, const StripedMatrix& matrix, const uint8_t* base,
              uint32_t stripe, Precision precision, const void* const* in, uint32_t tokens, float* const* out);

/// @throws Error INTERNAL if the buffer has another length
void check_input(const Context& context, BufferId input, uint64_t cols, const char* op);
void check_output(const Context& context, BufferId out, uint64_t rows, const char* op);
/// What a tiled matrix reads: the buffer, or its quantized form, which must be as long.
/// @throws Error INTERNAL
void check_activations(const Context& context, BufferId input, uint32_t cols, const char* op);

std::unique_ptr<ParallelOp> make_op(const step::Matvec& s, const Context& context);
std::unique_ptr<ParallelOp> make_op(const step::GatedMatvec& s, const Context& context);
std::unique_ptr<ParallelOp> make_op(const step::PlainMatvec& s, const Context& context);
std::unique_ptr<ParallelOp> make_op(const step::Attend& s, const Program& program, const Context& context);
std::unique_ptr<ParallelOp> make_op(const step::ExpertsUp& s, const Context& context);
std::unique_ptr<ParallelOp> make_op(const step::ExpertsDown& s, const Context& context);
std::unique_ptr<TokenOp> make_small(const step::PlainMatvec& s, const Context& context);

}  // namespace cflow
