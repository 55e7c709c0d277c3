// What the engine executes; the native form of packages/runtime-native/src/native/program.ts, field by field.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "../kernels/kernels.h"
#include "../tiers/fetch.h"
#include "../tiers/kv_cache.h"

namespace cflow {

using BufferId = uint32_t;
using Offset = int64_t;  // byte offset in the file; -1 = none

constexpr uint32_t kInMemory = UINT32_MAX;

/// stripes[i]: byte offset of output rows 128 i and on; absolute, or relative to the first byte of a fetched stream or
/// of an expert.
struct TiledMatrix {
  uint32_t rows = 0;
  uint32_t cols = 0;
  std::vector<uint64_t> stripes;
};

namespace step {

struct Embed {
  TiledMatrix matrix;
  float scale;
  BufferId out;
};
struct RmsNorm {
  BufferId input;
  Offset weight;
  uint32_t weight_length;
  uint32_t group_size;
  float eps;
  BufferId out;
};
struct Quantize {
  BufferId input;
  uint32_t parts;
  uint32_t part_length;
};
struct MatvecOutput {
  BufferId out;
  TiledMatrix matrix;
  Offset bias;
};
struct Matvec {
  BufferId input;
  std::vector<MatvecOutput> outs;
  uint32_t stream = kInMemory;  // of all matrices
};
struct GatedMatvec {
  BufferId input;
  TiledMatrix gate;
  TiledMatrix up;
  Offset gate_bias;
  Offset up_bias;
  Activation activation;
  BufferId out;
  uint32_t stream = kInMemory;
};
struct PlainMatvec {
  BufferId input;
  Offset weight;
  uint32_t rows;
  uint32_t cols;
  BufferId out;
};
struct Rope {
  BufferId buffer;
  uint32_t head_dim;
  uint32_t table;
};
struct Append {
  uint32_t cache;
  BufferId k;
  BufferId v;
};
struct Attend {
  uint32_t cache;
  BufferId q;
  BufferId out;
  uint32_t heads;
  float scale;
  float softcap;    // 0 = none
  uint32_t window;  // 0 = all
};
struct Glu {
  BufferId gate;
  BufferId up;
  Activation activation;
  BufferId out;
  uint32_t up_from = 0;  // first element of up
};
struct Route {
  BufferId logits;
  uint32_t top_k;
  bool normalize;
  BufferId out;
  Offset scale = -1;  // factors of the weights, one per expert
};
struct ExpertsUp {
  BufferId input;
  BufferId routing;
  uint32_t top_k;
  uint32_t dim;
  Activation activation;
  BufferId hidden;
  std::vector<uint64_t> experts;
  TiledMatrix gate;
  TiledMatrix up;
  uint32_t bank = kInMemory;  // fetched
};
struct ExpertsDown {
  BufferId hidden;
  BufferId routing;
  uint32_t top_k;
  uint32_t dim;
  BufferId out;
  std::vector<uint64_t> experts;
  TiledMatrix down;
  uint32_t bank = kInMemory;
};
struct Sum {
  std::vector<BufferId> terms;
  std::vector<float> coefficients;
  BufferId out;
  Offset scale = -1;  // one factor of the sum
};
struct Clamp {
  BufferId buffer;
  float limit;
};
struct Softcap {
  BufferId buffer;
  float cap;
};
/// out[at + i] = input[i].
struct Copy {
  BufferId input;
  BufferId out;
  uint32_t at;
};
/// Starts to fetch what `routing` chose of the experts of `bank`, or a stream (PIPO's Call); returns at once.
struct CallExperts {
  uint32_t bank;
  BufferId routing;
  uint32_t top_k;
  bool ahead;  // on a prediction
};
struct CallStream {
  uint32_t stream;
};
/// Waits for a fetch (PIPO's Synchronize); without it, whoever uses a part waits for that part.
struct SyncExperts {
  uint32_t bank;
};
struct SyncStream {
  uint32_t stream;
};
/// The last step that used it has run.
struct ReleaseExperts {
  uint32_t bank;
};
struct ReleaseStream {
  uint32_t stream;
};

}  // namespace step

using Step = std::variant<step::Embed, step::RmsNorm, step::Quantize, step::Matvec, step::GatedMatvec,
                          step::PlainMatvec, step::Rope, step::Append, step::Attend, step::Glu, step::Route,
                          step::ExpertsUp, step::ExpertsDown, step::Sum, step::Clamp, step::Softcap, step::Copy, step::CallExperts,
                          step::CallStream, step::SyncExperts, step::SyncStream, step::ReleaseExperts,
                          step::ReleaseStream>;

struct Phase {
  std::vector<uint32_t> parallel;
  std::vector<uint32_t> serial;
  /// Behind the serial ones, once a batch.
  std::vector<uint32_t> transfers;
};

/// From `length` positions on, frequency i is multiplied by g^(-2i / (rotaryDim - 2)),
/// g = factor * (position + 1) / length - (factor - 1); length 0 = never.
struct RopeGrowth {
  double factor = 1;
  uint32_t length = 0;
};

struct Program {
  Dtype dtype;
  std::vector<uint32_t> buffers;
  std::vector<CacheShape> caches;
  std::vector<std::vector<double>> ropes;
  std::vector<RopeGrowth> rope_growths;  // by table
  std::vector<FetchRegion> resident;             // what is read into memory under WeightMode::direct, in order
  std::vector<FetchRegion> streams;              // what is fetched every token, in the order of use
  std::vector<std::vector<FetchRegion>> banks;   // experts, by layer that has any
  std::vector<Step> steps;
  std::vector<Phase> phases;
  uint32_t head_phase;
  BufferId output;      // what callers get of a token: the logits, or what was traced; written by the head only
  uint32_t vocab_size;  // token ids are below it
  uint32_t context_length;
};

}  // namespace cflow
