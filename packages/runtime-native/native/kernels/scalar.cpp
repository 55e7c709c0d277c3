// The plain definition of every kernel, for any CPU, and what the tests compare the other units with: no shared code,
// no cleverness, sums in f64.
#include "kernels.h"

#include <math.h>
#include <string.h>

namespace cflow {
namespace {

#include "quantizer.h"

/// A group of quantized activations; a row is one behind the other.
struct Q8Group {
  float scale;
  int8_t q[kGroup];
  int8_t rest[kGroup];
};

float read_f16(const uint8_t* p) {
  uint16_t bits;
  memcpy(&bits, p, sizeof bits);
  float x;
  f16_to_f32(&bits, 1, &x);
  return x;
}

float read_f32(const uint8_t* p) {
  float x;
  memcpy(&x, p, sizeof x);
  return x;
}

/// Bytes of the scales of a row of a tile, and of its numbers.
size_t scale_row_bytes(Dtype dtype, int cols) {
  const bool grouped = dtype == Dtype::q4_0 || dtype == Dtype::q8_0;
  return grouped ? 2 * static_cast<size_t>((cols + kGroup - 1) / kGroup) : 0;
}

size_t data_row_bytes(Dtype dtype, int cols) {
  const size_t groups = static_cast<size_t>((cols + kGroup - 1) / kGroup);
  const size_t n = static_cast<size_t>(cols);
  const size_t bytes[kDtypeCount] = {16 * groups, 32 * groups, 2 * n, 4 * n};
  return bytes[static_cast<int>(dtype)];
}

/// Number c of a row of a tile.
double number_at(Dtype dtype, const uint8_t* data, int c) {
  if (dtype == Dtype::f16) return static_cast<double>(read_f16(data + 2 * c));
  if (dtype == Dtype::f32) return static_cast<double>(read_f32(data + 4 * c));
  if (dtype == Dtype::q8_0) return static_cast<double>(static_cast<int8_t>(data[c]));
  const uint8_t byte = data[c / kGroup * 16 + c % 16];
  const int nibble = c % kGroup < 16 ? byte & 15 : byte >> 4;
  return static_cast<double>(nibble - 8);
}

/// Calls visit(column, weight) for a row of a stripe, in order. A weight is integer * scale for q4_0 and q8_0, the number
/// itself for the others.
template <Dtype D, class Visit>
void each_weight(const uint8_t* stripe, int rows, int cols, int row, Visit visit) {
  const uint8_t* tile = stripe;
  for (int at = 0; at < cols; at += kTileCols) {
    const int n = cols - at < kTileCols ? cols - at : kTileCols;
    const size_t scale_bytes = scale_row_bytes(D, n);
    const size_t data_bytes = data_row_bytes(D, n);
    const uint8_t* all_scales = tile + kTileHeaderBytes;
    const uint8_t* all_data = all_scales + static_cast<size_t>(rows) * scale_bytes;
    const uint8_t* scales = all_scales + static_cast<size_t>(row) * scale_bytes;
    const uint8_t* data = all_data + static_cast<size_t>(row) * data_bytes;
    double scale = 1;
    for (int c = 0; c < n; ++c) {
      if (scale_bytes && c % kGroup == 0) scale = static_cast<double>(read_f16(scales + 2 * (c / kGroup)));
      visit(at + c, scale * number_at(D, data, c));
    }
    tile = all_data + static_cast<size_t>(rows) * data_bytes;
  }
}

template <Dtype D>
void matvec_f32(const uint8_t* stripe, int rows, int cols, const void* x, float* out) {
  const float* values = static_cast<const float*>(x);
  for (int r = 0; r < rows; ++r) {
    double sum = 0;
    each_weight<D>(stripe, rows, cols, r, [&](int c, double weight) { sum += weight * static_cast<double>(values[c]); });
    out[r] = static_cast<float>(sum);
  }
}

/// Activation i of a group in steps, of 256ths or whole ones.
double fine(const Q8Group& group, int i) { return group.q[i] + group.rest[i] / 256.0; }
double whole(const Q8Group& group, int i) { return group.q[i]; }

template <Dtype D, double (*Steps)(const Q8Group&, int)>
void matvec_q8(const uint8_t* stripe, int rows, int cols, const void* x, float* out) {
  const auto* groups = static_cast<const Q8Group*>(x);
  for (int r = 0; r < rows; ++r) {
    double sum = 0;
    each_weight<D>(stripe, rows, cols, r, [&](int c, double weight) {
      const Q8Group& group = groups[c / kGroup];
      sum += weight * static_cast<double>(group.scale) * Steps(group, c % kGroup);
    });
    out[r] = static_cast<float>(sum);
  }
}

template <MatvecFn Matvec>
void matmul(const uint8_t* stripe, int rows, int cols, const void* const* x, int tokens, float* const* out) {
  for (int t = 0; t < tokens; ++t) Matvec(stripe, rows, cols, x[t], out[t]);
}

size_t q8_row_bytes(int cols) {
  const size_t groups = static_cast<size_t>((cols + kGroup - 1) / kGroup);
  return (groups * sizeof(Q8Group) + 63) / 64 * 64;
}

void quantize_row(Dtype, const float* x, int cols, uint8_t* row) {
  auto* groups = reinterpret_cast<Q8Group*>(row);
  memset(row, 0, q8_row_bytes(cols));
  for (int c = 0; c < cols; c += kGroup) {
    Q8Group& group = groups[c / kGroup];
    const int n = cols - c < kGroup ? cols - c : kGroup;
    float amax = 0;
    bool finite = true;
    for (int i = 0; i < n; ++i) {
      finite = finite && isfinite(x[c + i]);
      if (fabsf(x[c + i]) > amax) amax = fabsf(x[c + i]);
    }
    group.scale = finite ? amax / 127.0f : NAN;
    // A subnormal scale has too few bits to divide by: such a group counts as zeros.
    if (finite && group.scale < 1.17549435e-38f) group.scale = 0;
    if (!finite || group.scale == 0) continue;
    for (int i = 0; i < n; ++i) {
      const float steps = x[c + i] * (127.0f / amax);
      const float rest = rintf(256 * (steps - rintf(steps)));
      group.q[i] = static_cast<int8_t>(rintf(steps));
      group.rest[i] = static_cast<int8_t>(rest > 127 ? 127 : rest < -127 ? -127 : rest);
    }
  }
}

template <Dtype D>
void dequantize_row(const uint8_t* stripe, int rows, int cols, int row, float* out) {
  each_weight<D>(stripe, rows, cols, row, [&](int c, double weight) { out[c] = static_cast<float>(weight); });
}

float dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return static_cast<float>(sum);
}

void rms_norm(const float* x, const float* weight, size_t n, float eps, float* out) {
  double squares = 0;
  for (size_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const double scale = 1 / sqrt(squares / static_cast<double>(n) + static_cast<double>(eps));
  for (size_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(static_cast<double>(x[i]) * scale * (weight ? static_cast<double>(weight[i]) : 1));
  }
}

void rope(float* head, const float* cos, const float* sin, size_t half) {
  for (size_t i = 0; i < half; ++i) {
    const float a = head[i];
    const float b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = a * sin[i] + b * cos[i];
  }
}

double gelu(double x) { return 0.5 * x * erfc(-x * 0.70710678118654752440); }

/// 0.5 x (1 + tanh u), without the cancellation where tanh u is nearly -1.
double gelu_tanh(double x) {
  const double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
  return x / (1 + exp(-2 * u));
}

double silu(double x) { return x / (1 + exp(-x)); }

template <double (*Act)(double)>
void glu(const float* gate, const float* up, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(Act(static_cast<double>(gate[i]))) * up[i];
}

void softmax(float* x, size_t n) {
  double most = -INFINITY;  // no fmax: g++ 12 for AArch64 crashes on a reduction with it
  for (size_t i = 0; i < n; ++i) {
    if (static_cast<double>(x[i]) > most) most = static_cast<double>(x[i]);
  }
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += exp(static_cast<double>(x[i]) - most);
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(exp(static_cast<double>(x[i]) - most) / sum);
}

void softcap(float* x, size_t n, float cap) {
  for (size_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(static_cast<double>(cap) * tanh(static_cast<double>(x[i]) / static_cast<double>(cap)));
  }
}

void weighted_sum(const float* const* terms, const float* coefficients, int count, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int t = 0; t < count; ++t) sum += static_cast<double>(coefficients[t]) * static_cast<double>(terms[t][i]);
    out[i] = static_cast<float>(sum);
  }
}

template <CacheType C>
void put(void* page, size_t at, float x) {
  if constexpr (C == CacheType::f32) static_cast<float*>(page)[at] = x;
  if constexpr (C == CacheType::f16) f32_to_f16(&x, 1, static_cast<uint16_t*>(page) + at);
}

template <CacheType C>
double get(const void* page, size_t at) {
  float x;
  if constexpr (C == CacheType::f32) x = static_cast<const float*>(page)[at];
  if constexpr (C == CacheType::f16) f16_to_f32(static_cast<const uint16_t*>(page) + at, 1, &x);
  return static_cast<double>(x);
}

/// Where element d of the key of a position stands.
size_t key_at(int dim, int slot, int d) {
  return static_cast<size_t>((slot / kKeyLanes * dim + d) * kKeyLanes + slot % kKeyLanes);
}

template <CacheType C>
void store_key(const float* key, int dim, int slot, void* key_page) {
  for (int d = 0; d < dim; ++d) put<C>(key_page, key_at(dim, slot, d), key[d]);
}

template <CacheType C>
void store_value(const float* value, int dim, int slot, void* value_page) {
  for (int d = 0; d < dim; ++d) put<C>(value_page, static_cast<size_t>(slot * dim + d), value[d]);
}

template <CacheType C>
void scores(const float* const* q, int m, const void* key_page, int dim, int count, float scale, float* scores,
            size_t stride) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < count; ++j) {
      double sum = 0;
      for (int d = 0; d < dim; ++d) sum += static_cast<double>(q[i][d]) * get<C>(key_page, key_at(dim, j, d));
      scores[static_cast<size_t>(i) * stride + static_cast<size_t>(j)] =
          static_cast<float>(sum * static_cast<double>(scale));
    }
  }
}

template <CacheType C>
void mix(const float* p, size_t stride, int m, const void* value_page, int dim, int first, int end, float* const* out) {
  for (int i = 0; i < m; ++i) {
    for (int d = 0; d < dim; ++d) {
      double sum = static_cast<double>(out[i][d]);
      for (int j = first; j < end; ++j) {
        sum += static_cast<double>(p[static_cast<size_t>(i) * stride + static_cast<size_t>(j)]) *
               get<C>(value_page, static_cast<size_t>(j * dim + d));
      }
      out[i][d] = static_cast<float>(sum);
    }
  }
}

using enum Dtype;

}  // namespace

extern const Kernels kKernelsScalar;
constinit const Kernels kKernelsScalar = {
    .isa = "scalar",
    .matvec = {{matvec_f32<q4_0>, matvec_f32<q8_0>, matvec_f32<f16>, matvec_f32<f32>},
               {matvec_q8<q4_0, fine>, matvec_q8<q8_0, fine>, nullptr, nullptr}},
    .matvecs = {{matmul<matvec_f32<q4_0>>, matmul<matvec_f32<q8_0>>, matmul<matvec_f32<f16>>, matmul<matvec_f32<f32>>},
                {matmul<matvec_q8<q4_0, fine>>, matmul<matvec_q8<q8_0, fine>>, nullptr, nullptr}},
    .matmul = {{matmul<matvec_f32<q4_0>>, matmul<matvec_f32<q8_0>>, matmul<matvec_f32<f16>>, matmul<matvec_f32<f32>>},
               {matmul<matvec_q8<q4_0, whole>>, matmul<matvec_q8<q8_0, whole>>, nullptr, nullptr}},
    .q8_row_bytes = q8_row_bytes,
    .quantize_row = quantize_row,
    .dequantize_row = {dequantize_row<q4_0>, dequantize_row<q8_0>, dequantize_row<f16>, dequantize_row<f32>},
    .dot = dot,
    .rms_norm = rms_norm,
    .rope = rope,
    .glu = {glu<gelu>, glu<gelu_tanh>, glu<silu>},
    .softmax = softmax,
    .softcap = softcap,
    .weighted_sum = weighted_sum,
    .store_key = {store_key<CacheType::f32>, store_key<CacheType::f16>},
    .store_value = {store_value<CacheType::f32>, store_value<CacheType::f16>},
    .scores = {scores<CacheType::f32>, scores<CacheType::f16>},
    .mix = {mix<CacheType::f32>, mix<CacheType::f16>},
    .encode_q4_0 = encode_q4_0,
    .encode_q4_0_bf16 = encode_q4_0_bf16,
    .encode_q8_0 = encode_q8_0,
    .find_nonfinite = find_nonfinite,
    .bf16_to_f32 = bf16_to_f32,
    .f16_to_f32 = f16_to_f32,
    .f32_to_f16 = f32_to_f16,
};

}  // namespace cflow
