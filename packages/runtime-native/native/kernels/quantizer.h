// The quantizers, for every instruction set: included inside the namespace of each unit and compiled with its flags.
//
// packages/format/src/quantize.ts is their definition, and the bytes are the same. That holds for every vector width
// because a lane is a group: sums run over the 32 weights of a group in order, whatever stands in the lanes beside it.
// Every operation is one of f32, rounded; nothing may be fused (-ffp-contract=off).
//
// No include guard, no headers of the standard library: see the Makefile.

#if defined(__AVX512F__)
#define CFLOW_LANES 16
#elif defined(__AVX__)
#define CFLOW_LANES 8
#else
#define CFLOW_LANES 4
#endif

namespace quantizer {

constexpr int kLanes = CFLOW_LANES;
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

#define CFLOW_INLINE static inline __attribute__((always_inline))

CFLOW_INLINE Floats all(float x) { return Floats{} + x; }
CFLOW_INLINE Ints all(int32_t x) { return Ints{} + x; }

// g++ does not make one instruction of a comparison and a selection of floats; clang does.
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)
CFLOW_INLINE Floats min(Floats a, Floats b) { return __builtin_ia32_minps512_mask(a, b, a, -1, 4); }
CFLOW_INLINE Floats max(Floats a, Floats b) { return __builtin_ia32_maxps512_mask(a, b, a, -1, 4); }
#elif defined(__GNUC__) && !defined(__clang__) && defined(__AVX__)
CFLOW_INLINE Floats min(Floats a, Floats b) { return __builtin_ia32_minps256(a, b); }
CFLOW_INLINE Floats max(Floats a, Floats b) { return __builtin_ia32_maxps256(a, b); }
#elif defined(__GNUC__) && !defined(__clang__) && defined(__SSE__)
CFLOW_INLINE Floats min(Floats a, Floats b) { return __builtin_ia32_minps(a, b); }
CFLOW_INLINE Floats max(Floats a, Floats b) { return __builtin_ia32_maxps(a, b); }
#else
CFLOW_INLINE Floats min(Floats a, Floats b) { return a < b ? a : b; }
CFLOW_INLINE Floats max(Floats a, Floats b) { return a > b ? a : b; }
#endif

CFLOW_INLINE Floats abs(Floats x) { return reinterpret_cast<Floats>(reinterpret_cast<Ints>(x) & 0x7fffffff); }
CFLOW_INLINE Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }
CFLOW_INLINE Ints to_ints(Floats x) { return __builtin_convertvector(x, Ints); }

template <class T, class V>
CFLOW_INLINE V load(const T* from) {
  V x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

template <class T, class V>
CFLOW_INLINE void store(T* to, V x) {
  __builtin_memcpy(to, &x, sizeof x);
}

// --- Interleaving: lanes 0, 0', 1, 1' … of two vectors; `low` gives the first half of them, `high` the second. ------

#if CFLOW_LANES == 16
#define CFLOW_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define CFLOW_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif CFLOW_LANES == 8
#define CFLOW_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define CFLOW_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define CFLOW_LOW 0, 4, 1, 5
#define CFLOW_HIGH 2, 6, 3, 7
#endif

template <class V>
CFLOW_INLINE V low(V a, V b) {
  return __builtin_shufflevector(a, b, CFLOW_LOW);
}
template <class V>
CFLOW_INLINE V high(V a, V b) {
  return __builtin_shufflevector(a, b, CFLOW_HIGH);
}

/// Transposes kLanes vectors in place: log2(kLanes) perfect shuffles of the rows.
CFLOW_INLINE void transpose(Floats (&rows)[kLanes]) {
  Floats other[kLanes];
#pragma GCC unroll 4
  for (int step = 1; step < kLanes; step *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; i++) {
      other[2 * i] = low(rows[i], rows[i + kLanes / 2]);
      other[2 * i + 1] = high(rows[i], rows[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) rows[i] = other[i];
  }
}

/// kLanes groups of 32, one a lane: out[i] has element i of every group.
static inline void load_groups(const float* weights, Floats (&out)[kGroup]) {
#pragma GCC unroll 1
  for (int from = 0; from < kGroup; from += kLanes) {
    Floats rows[kLanes];
#pragma GCC unroll 16
    for (int g = 0; g < kLanes; g++) rows[g] = load<float, Floats>(weights + g * kGroup + from);
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) out[from + i] = rows[i];
  }
}

// --- f16. ----------------------------------------------------------------------------------------------------------

/// The 16 bits of each lane; nearest, ties to even. NaN becomes the quiet NaN.
CFLOW_INLINE Ints half_bits(Floats x) {
  const Ints bits = reinterpret_cast<Ints>(x);
  const Ints magnitude = bits & 0x7fffffff;
  const Ints rounded = (magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // 0.5 has the step of the f16 subnormals, so that the addition rounds to it.
  const Ints small = reinterpret_cast<Ints>(reinterpret_cast<Floats>(magnitude) + 0.5f) - 0x3f000000;
  Ints half = magnitude < 0x38800000 ? small : rounded;
  half = magnitude >= 0x477ff000 ? all(0x7c00) : half;
  half = magnitude > 0x7f800000 ? all(0x7e00) : half;
  return half | ((bits >> 16) & 0x8000);
}

CFLOW_INLINE Floats half_value(Ints half) {
  const Ints exponent = half & 0x7c00;
  const Ints shifted = (half & 0x7fff) << 13;
  const Ints normal = shifted + (112 << 23);
  const Ints small = reinterpret_cast<Ints>(to_floats(half & 0x3ff) * 0x1p-24f);
  Ints bits = exponent == 0 ? small : normal;
  bits = exponent == 0x7c00 ? shifted + (224 << 23) : bits;
  return reinterpret_cast<Floats>(bits | ((half & 0x8000) << 16));
}

// --- Rounding. -----------------------------------------------------------------------------------------------------

/// The nearest integer, ties to even, below 2^22.
CFLOW_INLINE Floats nearest(Floats x) {
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)
  return __builtin_ia32_rndscaleps_mask(x, 8, x, -1, 4);
#elif defined(__GNUC__) && !defined(__clang__) && defined(__AVX__)
  return __builtin_ia32_roundps256(x, 8);
#else
  // Adding 1.5 * 2^23 leaves no bit for a fraction.
  return (x + 0x1.8p23f) - 0x1.8p23f;
#endif
}

/// The level -8 .. 7 nearest to `scaled`.
CFLOW_INLINE Floats nearest_level(Floats scaled) { return min(max(nearest(scaled), all(-8.0f)), all(7.0f)); }

/// In each lane the first of the weights of largest magnitude.
CFLOW_INLINE Floats signed_peak(const Floats (&w)[kGroup]) {
  Floats peak = {};
#pragma GCC unroll 4
  for (int i = 0; i < kGroup; i++) peak = abs(w[i]) > abs(peak) ? w[i] : peak;
  return peak;
}

/// 1 / scale, and 0 where the scale is 0 or infinite: such a lane is not used.
CFLOW_INLINE Floats usable_inverse(Floats scale) {
  const Ints magnitude = reinterpret_cast<Ints>(scale) & 0x7fffffff;
  return (magnitude == 0) | (magnitude >= 0x7f800000) ? Floats{} : 1.0f / scale;
}

// --- q4_0. ---------------------------------------------------------------------------------------------------------

constexpr int kLevels = 8;
/// Of the levels, the first so many can round to more than 7 or less than -8.
constexpr int kClamped = 4;
/// Levels that the largest weight is tried at, as in quantize.ts.
constexpr float kSearchLevels[kLevels] = {-8.7f, -8.2f, -7.8f, -7.3f, -6.7f, -6.1f, 6.6f, 7.2f};
/// The search must win by more than the rounding of the sums.
constexpr float kMargin = 1.00002f;

struct Fit {
  Floats square, wl, ll;
};

/// Tries `count` levels at once, to have as many independent sums. `clamped`: some may round beyond -8 .. 7.
template <int count, bool clamped>
CFLOW_INLINE void try_levels(const Floats (&w)[kGroup], Floats reciprocal, const float* levels, Fit& best) {
  Floats inverse[count], wl[count], ll[count];
#pragma GCC unroll 4
  for (int k = 0; k < count; k++) {
    inverse[k] = levels[k] * reciprocal;
    wl[k] = ll[k] = Floats{};
  }
#pragma GCC unroll 1
  for (int i = 0; i < kGroup; i++) {
#pragma GCC unroll 4
    for (int k = 0; k < count; k++) {
      const Floats scaled = w[i] * inverse[k];
      const Floats level = clamped ? nearest_level(scaled) : nearest(scaled);
      wl[k] += w[i] * level;
      ll[k] += level * level;
    }
  }
#pragma GCC unroll 4
  for (int k = 0; k < count; k++) {
    const Floats square = wl[k] * wl[k];
    const Ints better = square * best.ll > best.square * ll[k];
    best.square = better ? square : best.square;
    best.wl = better ? wl[k] : best.wl;
    best.ll = better ? ll[k] : best.ll;
  }
}

/// What a scale takes off the sum of squares: sum of w^2 - sum of (w - scale * l)^2.
CFLOW_INLINE Floats gain(Floats scale, Floats wl, Floats ll) { return scale * (wl + wl - scale * ll); }

/// The gain of the levels that the scale itself rounds to.
CFLOW_INLINE Floats rounded_gain(const Floats (&w)[kGroup], Floats scale) {
  const Floats inverse = usable_inverse(scale);
  Floats wl = {}, ll = {};
#pragma GCC unroll 4
  for (int i = 0; i < kGroup; i++) {
    const Floats level = nearest_level(w[i] * inverse);
    wl += w[i] * level;
    ll += level * level;
  }
  return gain(scale, wl, ll);
}

/// f16 bits of the scale of every lane.
CFLOW_INLINE Ints search_scales(const Floats (&w)[kGroup]) {
  const Floats peak = signed_peak(w);
  const Ints report = half_bits(abs(peak) / 7.0f);
  // A lane whose scale is 0 stays so whatever its peak; 1 keeps infinities out of the sums.
  const Floats reciprocal = 1.0f / (report == 0 ? all(1.0f) : peak);
  Fit best = {Floats{}, Floats{}, all(1.0f)};
  constexpr int kAtOnce = kLanes == 16 ? 4 : 2;
  for (int k = 0; k < kClamped; k += kAtOnce) try_levels<kAtOnce, true>(w, reciprocal, kSearchLevels + k, best);
  for (int k = kClamped; k < kLevels; k += kAtOnce) try_levels<kAtOnce, false>(w, reciprocal, kSearchLevels + k, best);
  const Ints searched = half_bits(best.wl / best.ll);
  const Ints magnitude = searched & 0x7fff;
  const Ints usable = (magnitude != 0) & (magnitude < 0x7c00) & (report != 0);
  const Floats limit = rounded_gain(w, half_value(report)) * kMargin;
  return usable & (gain(half_value(searched), best.wl, best.ll) > limit) ? searched : report;
}

/// Byte j of a group holds element j low and element j + 16 high; 16 bytes a lane, lane after lane.
CFLOW_INLINE void pack_nibbles(const Floats (&w)[kGroup], Floats scale, uint8_t* data) {
  const Floats inverse = usable_inverse(scale);
  Ints words[4];
#pragma GCC unroll 4
  for (int k = 0; k < 4; k++) {
    words[k] = Ints{};
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      const Floats lower = nearest_level(w[4 * k + j] * inverse) + 8.0f;
      const Floats upper = nearest_level(w[4 * k + j + 16] * inverse) + 8.0f;
      words[k] |= to_ints(lower + 16.0f * upper) << (8 * j);
    }
  }
  const Ints even[2] = {low(words[0], words[2]), high(words[0], words[2])};
  const Ints odd[2] = {low(words[1], words[3]), high(words[1], words[3])};
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    store(data + 4 * kLanes * (2 * half), low(even[half], odd[half]));
    store(data + 4 * kLanes * (2 * half + 1), high(even[half], odd[half]));
  }
}

CFLOW_INLINE void store_scales(Ints half, uint16_t* scales) { store(scales, __builtin_convertvector(half, Halves)); }

template <bool search>
static inline void encode_q4_lanes(const float* weights, uint16_t* scales, uint8_t* data) {
  Floats w[kGroup];
  load_groups(weights, w);
  Ints half;
  if constexpr (search) half = search_scales(w);
  else half = half_bits(abs(signed_peak(w)) / 7.0f);
  store_scales(half, scales);
  pack_nibbles(w, half_value(half), data);
}

// --- q8_0. ---------------------------------------------------------------------------------------------------------

static inline void encode_q8_lanes(const float* weights, uint16_t* scales, uint8_t* data) {
  Floats w[kGroup];
  load_groups(weights, w);
  const Floats most = abs(signed_peak(w));
  const Ints half = half_bits(most / 127.0f);
  const Floats inverse = half == 0 ? Floats{} : 127.0f / (half == 0 ? all(1.0f) : most);
  store_scales(half, scales);
  Ints words[8];
#pragma GCC unroll 8
  for (int k = 0; k < 8; k++) {
    words[k] = Ints{};
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      const Floats level = min(max(nearest(w[4 * k + j] * inverse), all(-127.0f)), all(127.0f));
      words[k] |= (to_ints(level) & 0xff) << (8 * j);
    }
  }
  int32_t lanes[8][kLanes];
  for (int k = 0; k < 8; k++) store(lanes[k], words[k]);
  for (int g = 0; g < kLanes; g++) {
    for (int k = 0; k < 8; k++) __builtin_memcpy(data + 32 * g + 4 * k, &lanes[k][g], 4);
  }
}

/// Calls `encode` for kLanes groups at a time; the rest is filled up with groups of zeros.
template <class Encode>
CFLOW_INLINE void each_lanes(const float* weights, size_t groups, size_t group_bytes, uint16_t* scales, uint8_t* data,
                             Encode encode) {
  size_t at = 0;
  for (; at + kLanes <= groups; at += kLanes) encode(weights + at * kGroup, scales + at, data + at * group_bytes);
  const size_t rest = groups - at;
  if (rest == 0) return;
  float padded[kLanes * kGroup] = {};
  uint16_t padded_scales[kLanes];
  uint8_t padded_data[kLanes * kGroup];
  __builtin_memcpy(padded, weights + at * kGroup, rest * kGroup * sizeof(float));
  encode(padded, padded_scales, padded_data);
  __builtin_memcpy(scales + at, padded_scales, rest * sizeof(uint16_t));
  __builtin_memcpy(data + at * group_bytes, padded_data, rest * group_bytes);
}

/// out[i] = convert(in[i]), kLanes at a time.
template <class In, class VIn, class Out, class VOut, class Convert>
CFLOW_INLINE void each_value(const In* in, size_t n, Out* out, Convert convert) {
  size_t at = 0;
  for (; at + kLanes <= n; at += kLanes) store(out + at, convert(load<In, VIn>(in + at)));
  if (at == n) return;
  In padded[kLanes] = {};
  __builtin_memcpy(padded, in + at, (n - at) * sizeof(In));
  const VOut last = convert(load<In, VIn>(padded));
  __builtin_memcpy(out + at, &last, (n - at) * sizeof(Out));
}

}  // namespace quantizer

/// Kernels::encode_q4_0
static void encode_q4_0(const float* weights, size_t groups, bool scale_search, uint16_t* scales, uint8_t* data) {
  using namespace quantizer;
  if (scale_search) each_lanes(weights, groups, 16, scales, data, encode_q4_lanes<true>);
  else each_lanes(weights, groups, 16, scales, data, encode_q4_lanes<false>);
}

/// Kernels::encode_q8_0
static void encode_q8_0(const float* weights, size_t groups, uint16_t* scales, uint8_t* data) {
  quantizer::each_lanes(weights, groups, 32, scales, data, quantizer::encode_q8_lanes);
}

/// Kernels::find_nonfinite
static size_t find_nonfinite(const float* x, size_t n) {
  using namespace quantizer;
  constexpr size_t kBlock = 16 * kLanes;
  size_t at = 0;
  for (; at + kBlock <= n; at += kBlock) {
    Ints most = {};
    for (size_t i = 0; i < kBlock; i += kLanes) {
      const Ints magnitude = load<float, Ints>(x + at + i) & 0x7fffffff;
      most = magnitude > most ? magnitude : most;
    }
    int32_t worst = 0;
    for (int i = 0; i < kLanes; i++) worst = most[i] > worst ? most[i] : worst;
    if (worst >= 0x7f800000) break;
  }
  for (; at < n; at++) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + at, 4);
    if ((bits & 0x7f800000u) == 0x7f800000u) return at;
  }
  return n;
}

/// Kernels::bf16_to_f32
static void bf16_to_f32(const uint16_t* in, size_t n, float* out) {
  using namespace quantizer;
  each_value<uint16_t, Halves, float, Words>(in, n, out, [](Halves x) { return __builtin_convertvector(x, Words) << 16; });
}

/// Kernels::f16_to_f32
static void f16_to_f32(const uint16_t* in, size_t n, float* out) {
  using namespace quantizer;
  each_value<uint16_t, Halves, float, Floats>(in, n, out,
                                              [](Halves x) { return half_value(__builtin_convertvector(x, Ints)); });
}

/// Kernels::f32_to_f16
static void f32_to_f16(const float* in, size_t n, uint16_t* out) {
  using namespace quantizer;
  each_value<float, Floats, uint16_t, Halves>(in, n, out,
                                              [](Floats x) { return __builtin_convertvector(half_bits(x), Halves); });
}

#undef CFLOW_LANES
#undef CFLOW_LOW
#undef CFLOW_HIGH
#undef CFLOW_INLINE
