// The steps of a program, prepared: one small class an operation. Matrix and attention work is cut into units that
// threads share out; the rest works token by token.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "../base/error.h"
#include "batch.h"
#include "engine.h"
#include "program.h"

namespace cflow {

class Storage;

/// Vectors of the steps, one row a token: f32 and, where tiled matrices read them, int8.
class Buffers {
 public:
  Buffers(const Program& program, const Kernels& kernels, Arithmetic arithmetic);

  /// Makes room for `tokens` rows, and for the output of the tokens from `head` on only: a row of logits is long.
  /// Contents are lost. @throws Error MEMORY, and then there is room for as many as before
  void reserve(uint32_t tokens, uint32_t head);
  uint64_t bytes() const { return block_.size(); }

  uint32_t length(BufferId buffer) const { return specs_[buffer].length; }
  float* row(BufferId buffer, uint32_t token) const {
    const Spec& spec = specs_[buffer];
    return reinterpret_cast<float*>(block_.data() + spec.f32_at) + size_t{token - spec.first} * spec.stride;
  }
  /// What a matrix kernel reads: part `part` of the row, int8 under q8 arithmetic if the buffer has that form.
  const void* activations(BufferId buffer, uint32_t token, uint32_t part = 0) const {
    const Spec& spec = specs_[buffer];
    if (spec.part_bytes) return quantized(buffer, token, part);
    return row(buffer, token) + size_t{part} * spec.part_stride;
  }
  uint8_t* quantized(BufferId buffer, uint32_t token, uint32_t part) const {
    const Spec& spec = specs_[buffer];
    return block_.data() + spec.q8_at + (size_t{token} * spec.parts + part) * spec.part_bytes;
  }
  /// Elements of a quantized part, and parts of a row; 0 and 1 = only f32.
  uint32_t part_length(BufferId buffer) const { return specs_[buffer].part_length; }
  uint32_t parts(BufferId buffer) const { return specs_[buffer].parts; }
  /// Floats from part to part, as experts write them; 0 = no parts.
  uint32_t part_stride(BufferId buffer) const { return specs_[buffer].part_stride; }
  /// Arithmetic of the matrices that read the buffer.
  Arithmetic arithmetic(BufferId buffer) const { return specs_[buffer].part_bytes ? Arithmetic::q8 : Arithmetic::f32; }
  /// Cosines and sines of a rope table for a token of the batch, [rotaryDim / 2] each.
  float* rope_row(uint32_t table, uint32_t token) const;
  /// Makes the angles of the batch. Angles are computed in double: f32 loses them beyond some thousand positions.
  void fill_ropes(const Program& program, const BatchRows& rows);

 private:
  struct Spec {
    uint32_t length = 0;
    /// Floats from row to row: a multiple of 32, and zero beyond the length, as kernels want.
    uint32_t stride = 0;
    /// The token of row 0.
    uint32_t first = 0;
    uint32_t parts = 1;
    uint32_t part_stride = 0;
    uint32_t part_length = 0;
    /// Bytes of one quantized part; 0 = only f32.
    size_t part_bytes = 0;
    size_t f32_at = 0;
    size_t q8_at = 0;
  };
  struct Rope {
    uint32_t half = 0;
    size_t at = 0;
  };
  std::vector<Spec> specs_;
  std::vector<Rope> ropes_;
  BufferId output_;
  /// Rows that there is room for.
  uint32_t tokens_ = 0;
  uint32_t output_rows_ = 0;
  Block block_;
};

/// What every operation needs to know.
struct Context {
  const Kernels& kernels;
  const Storage& storage;
  Dtype dtype;
  CacheType cache;
  /// Whether KV cache pages may be on disk.
  bool spills;
  const Buffers& buffers;
  /// Null unless routings are recorded.
  std::vector<Routing>* routings;
};

/// Most tokens per call of a matrix kernel: their accumulators and activations fit the caches of a core.
constexpr uint32_t kTokenBlock = 128;

/// What one thread needs for a unit of work; allocated once.
struct Scratch {
  const void* in[kTokenBlock];
  float* out[kTokenBlock];
  alignas(64) float first[kTokenBlock * kTileRows];
  alignas(64) float second[kTokenBlock * kTileRows];
  std::vector<float> scores;
  /// What experts give the rows that are summed by routing.
  std::vector<float> parts;
};

/// About so many tokens are multiplied by a weight in the time that it takes to read it.
constexpr uint32_t kTokensPerRead = 8;

class ParallelOp {
 public:
  virtual ~ParallelOp() = default;
  virtual const char* name() const = 0;
  /// Called by one thread before the phase; returns the number of units.
  virtual uint32_t prepare(const Batch& batch) = 0;
  /// Weight bytes that the units read, as prepared.
  virtual uint64_t bytes() const = 0;
  /// The work of the units, as prepared, in bytes that a thread reads in the same time.
  virtual uint64_t work(const Batch& batch) const { return bytes() * std::max(1u, batch.tokens() / kTokensPerRead); }
  /// Whether units may wait for the disk; they run after all others.
  virtual bool waits() const { return false; }
  /// Units are independent; any thread, any order.
  virtual void run(const Batch& batch, uint32_t unit, Scratch& scratch) const = 0;
  /// Called by one thread after the units.
  virtual void finish(const Batch&) {}
};

class TokenOp {
 public:
  virtual ~TokenOp() = default;
  virtual const char* name() const = 0;
  /// Rows first <= t < end, which are independent of others.
  virtual void run(const Batch& batch, uint32_t first, uint32_t end) const = 0;
};

/// Moves weights, or notes how they are used.
class TransferOp {
 public:
  virtual ~TransferOp() = default;
  /// Once a batch, while no other thread runs.
  virtual void run(const Batch& batch) = 0;
};

template <typename... Visitors>
struct Overloads : Visitors... {
  using Visitors::operator()...;
};

/// @throws Error INTERNAL if the step does not fit buffers or file
std::unique_ptr<ParallelOp> make_parallel(const Step& step, const Program& program, const Context& context);
std::unique_ptr<TokenOp> make_serial(const Step& step, const Program& program, const Context& context);
std::unique_ptr<TransferOp> make_transfer(const Step& step, const Program& program, const Context& context);

/// The bytes of a weight region, checked against the file. @throws Error INTERNAL
const uint8_t* weight_bytes(const Context& context, uint64_t offset, uint64_t length);
/// f32 weights; null for offset -1.
const float* weight_floats(const Context& context, Offset offset, uint64_t count);

}  // namespace cflow
