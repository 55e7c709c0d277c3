// What the files of operations share: striped matrices, and the constructor of each operation.
#pragma once

#include <memory>
#include <vector>

#include "ops.h"

namespace cflow {

/// A tiled matrix in memory, by output stripe.
class StripedMatrix {
 public:
  /// @param base added to the offsets. @throws Error INTERNAL if it does not fit the file
  StripedMatrix(const TiledMatrix& matrix, const Context& context, uint64_t base);

  int cols() const { return cols_; }
  int rows() const { return rows_; }
  uint32_t stripes() const { return static_cast<uint32_t>(ceil_div(rows_, kTileRows)); }
  int stripe_rows(uint32_t stripe) const {
    const int left = rows_ - static_cast<int>(stripe) * kTileRows;
    return left < kTileRows ? left : kTileRows;
  }
  const uint8_t* stripe(uint32_t index) const { return stripes_[index]; }
  uint64_t bytes() const { return bytes_; }

 private:
  int rows_;
  int cols_;
  std::vector<const uint8_t*> stripes_;
  uint64_t bytes_ = 0;
};

/// out[t][r] of one stripe, for tokens vectors.
void multiply(const Context& context, Arithmetic arithmetic, const StripedMatrix& matrix, uint32_t stripe,
              const void* const* in, uint32_t tokens, float* const* out);

/// @throws Error INTERNAL if the buffer has another length
void check_input(const Context& context, BufferId input, uint32_t cols, const char* op);
void check_output(const Context& context, BufferId out, uint32_t rows, const char* op);

std::unique_ptr<ParallelOp> make_op(const step::Matvec& s, const Context& context);
std::unique_ptr<ParallelOp> make_op(const step::GatedMatvec& s, const Context& context);
std::unique_ptr<ParallelOp> make_op(const step::PlainMatvec& s, const Context& context);
std::unique_ptr<ParallelOp> make_op(const step::Attend& s, const Program& program, const Context& context);
std::unique_ptr<ParallelOp> make_op(const step::ExpertsUp& s, const Context& context);
std::unique_ptr<ParallelOp> make_op(const step::ExpertsDown& s, const Context& context);
std::unique_ptr<TokenOp> make_small(const step::PlainMatvec& s, const Context& context);

}  // namespace cflow
