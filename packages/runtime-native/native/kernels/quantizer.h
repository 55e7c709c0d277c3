// The quantizers, for every instruction set: included inside the namespace of each unit and compiled with its flags.
//
// packages/format/src/quantize.ts is their definition, and the bytes are the same. That holds for every vector width
// because a lane is a group, and sums are sums of integers. Every other operation is one of f32, rounded; nothing may
// be fused (-ffp-contract=off).
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
/// Two to a lane, the first in the low half.
typedef int16_t Shorts __attribute__((vector_size(4 * kLanes)));

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

CFLOW_INLINE Shorts both(int16_t x) { return Shorts{} + x; }

#if defined(__AVX512BW__)
CFLOW_INLINE Ints max(Ints a, Ints b) { return (Ints)_mm512_max_epi32((__m512i)a, (__m512i)b); }
CFLOW_INLINE Words max(Words a, Words b) { return (Words)_mm512_max_epu32((__m512i)a, (__m512i)b); }
CFLOW_INLINE Shorts min(Shorts a, Shorts b) { return (Shorts)_mm512_min_epi16((__m512i)a, (__m512i)b); }
CFLOW_INLINE Shorts max(Shorts a, Shorts b) { return (Shorts)_mm512_max_epi16((__m512i)a, (__m512i)b); }
#else
CFLOW_INLINE Ints max(Ints a, Ints b) { return a > b ? a : b; }
CFLOW_INLINE Words max(Words a, Words b) { return a > b ? a : b; }
CFLOW_INLINE Shorts min(Shorts a, Shorts b) { return a < b ? a : b; }
CFLOW_INLINE Shorts max(Shorts a, Shorts b) { return a > b ? a : b; }
#endif

/// (a * b + 2^14) >> 15
CFLOW_INLINE Shorts scaled(Shorts a, Shorts b) {
#if defined(__AVX512BW__)
  return (Shorts)_mm512_mulhrs_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Shorts)_mm256_mulhrs_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSSE3__) && defined(__AVX__)
  __m128i x[2], y[2];
  __builtin_memcpy(x, &a, sizeof x);
  __builtin_memcpy(y, &b, sizeof y);
  x[0] = _mm_mulhrs_epi16(x[0], y[0]);
  x[1] = _mm_mulhrs_epi16(x[1], y[1]);
  __builtin_memcpy(&a, x, sizeof x);
  return a;
#else
  typedef int32_t Wide __attribute__((vector_size(8 * kLanes)));
  const Wide product = __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide);
  return __builtin_convertvector((product + (1 << 14)) >> 15, Shorts);
#endif
}

/// sum + the products of both halves of each lane
CFLOW_INLINE Ints add_products(Ints sum, Shorts a, Shorts b) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
  return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  return sum + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSSE3__) && defined(__AVX__)
  __m128i x[2], y[2];
  __builtin_memcpy(x, &a, sizeof x);
  __builtin_memcpy(y, &b, sizeof y);
  x[0] = _mm_madd_epi16(x[0], y[0]);
  x[1] = _mm_madd_epi16(x[1], y[1]);
  Ints products;
  __builtin_memcpy(&products, x, sizeof x);
  return sum + products;
#else
  const Ints x = reinterpret_cast<Ints>(a), y = reinterpret_cast<Ints>(b);
  return sum + (x >> 16) * (y >> 16) + (x << 16 >> 16) * (y << 16 >> 16);
#endif
}

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

/// The same from bf16, two elements at a time.
static inline void load_groups(const uint16_t* weights, Floats (&out)[kGroup]) {
#pragma GCC unroll 1
  for (int from = 0; from < kGroup / 2; from += kLanes) {
    Floats rows[kLanes];
#pragma GCC unroll 16
    for (int g = 0; g < kLanes; g++) rows[g] = load<uint16_t, Floats>(weights + g * kGroup + 2 * from);
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) {
      const Words two = reinterpret_cast<Words>(rows[i]);
      out[2 * (from + i)] = reinterpret_cast<Floats>(two << 16);
      out[2 * (from + i) + 1] = reinterpret_cast<Floats>(two & 0xffff0000u);
    }
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

CFLOW_INLINE Ints nearest_int(Floats x) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX__)
  return (Ints)_mm256_cvtps_epi32((__m256)x);
#else
  return to_ints(nearest(x));
#endif
}

/// The nearest integers, below 2^15.
CFLOW_INLINE Shorts nearest_pair(Floats first, Floats second) {
  return reinterpret_cast<Shorts>((nearest_int(first) & 0xffff) | (nearest_int(second) << 16));
}

/// The weight of largest magnitude in each lane, the negative one of two.
CFLOW_INLINE Floats signed_peak(const Floats (&w)[kGroup]) {
  // Bits of positive numbers are ordered as they are, and those of negative ones by magnitude above all positive.
  Ints positive = {};
  Words negative = {};
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; i++) {
    positive = max(positive, reinterpret_cast<Ints>(w[i]));
    negative = max(negative, reinterpret_cast<Words>(w[i]));
  }
  const Ints bits = reinterpret_cast<Ints>(negative);
  const Ints magnitude = bits < 0 ? bits & 0x7fffffff : Ints{};
  return reinterpret_cast<Floats>(positive > magnitude ? positive : bits);
}

/// 1 / scale, and 0 where the scale is 0 or infinite: such a lane is not used.
CFLOW_INLINE Floats usable_inverse(Floats scale) {
  const Ints magnitude = reinterpret_cast<Ints>(scale) & 0x7fffffff;
  return (magnitude == 0) | (magnitude >= 0x7f800000) ? Floats{} : 1.0f / scale;
}

// --- q4_0. ---------------------------------------------------------------------------------------------------------

constexpr int kLevels = 4;
/// Levels that the largest weight is tried at, in sixteenths, as in quantize.ts.
constexpr int16_t kSearchLevels[kLevels] = {138, 132, 126, 116};
/// Up to this one no weight is rounded below -8.
constexpr int16_t kMostUnclamped = 135;
constexpr float kUnits = -32767.0f;
constexpr float kMargin = 0.1f;
constexpr int kPairs = kGroup / 2;

struct Fit {
  Ints wl, ll;
};

struct BestFit {
  Floats square, wl, ll;
};

CFLOW_INLINE void add(Fit& fit, Shorts units, Shorts level) {
  fit.wl = add_products(fit.wl, units, level);
  fit.ll = add_products(fit.ll, level, level);
}

CFLOW_INLINE void take_better(BestFit& best, const Fit& fit) {
  const Floats wl = to_floats(fit.wl), ll = to_floats(fit.ll);
  const Floats square = wl * wl;
  const Ints better = square * best.ll > best.square * ll;
  best.square = better ? square : best.square;
  best.wl = better ? wl : best.wl;
  best.ll = better ? ll : best.ll;
}

/// What a scale takes off the sum of squares: sum of w^2 - sum of (w - scale * l)^2.
CFLOW_INLINE Floats gain(Floats scale, Floats wl, Floats ll) { return scale * (wl + wl - scale * ll); }

/// f16 bits of the scale of every lane; quantize.ts explains the steps.
CFLOW_INLINE Ints search_scales(const Floats (&w)[kGroup], Floats peak, Ints report) {
  // Lanes of zeros keep the report's scale, whatever comes out of them.
  const Floats safe_peak = report == 0 ? all(1.0f) : peak;
  const Floats units = kUnits / safe_peak;
  const Floats report_scale = (report == 0 ? all(1.0f) : half_value(report)) * units;
  const Ints report_inverse = nearest_int(0x1p26f / report_scale);
  const Shorts inverse = reinterpret_cast<Shorts>((report_inverse & 0xffff) | (report_inverse << 16));
  Fit fits[kLevels] = {}, report_fit = {};
#pragma GCC unroll 1
  for (int i = 0; i < kPairs; i++) {
    const Shorts fine = nearest_pair(w[2 * i] * units, w[2 * i + 1] * units);
    const Shorts coarse = scaled(fine, both(1 << 11));
#pragma GCC unroll 8
    for (int k = 0; k < kLevels; k++) {
      const Shorts level = min(scaled(coarse, both(kSearchLevels[k])), both(7));
      add(fits[k], fine, kSearchLevels[k] > kMostUnclamped ? max(level, both(-8)) : level);
    }
    const Shorts level = scaled(scaled(fine, inverse), both(1 << 4));
    add(report_fit, fine, min(max(level, both(-8)), both(7)));
  }
  BestFit best = {Floats{}, Floats{}, all(1.0f)};
#pragma GCC unroll 8
  for (int k = 0; k < kLevels; k++) take_better(best, fits[k]);
  const Ints searched = half_bits(best.wl / best.ll * (safe_peak / kUnits));
  const Ints magnitude = searched & 0x7fff;
  const Ints usable = (magnitude != 0) & (magnitude < 0x7c00) & (report != 0);
  const Floats limit = gain(report_scale, to_floats(report_fit.wl), to_floats(report_fit.ll)) +
                       report_scale * report_scale * kMargin;
  return usable & (gain(half_value(searched) * units, best.wl, best.ll) > limit) ? searched : report;
}

/// Levels of two weights, plus 8.
CFLOW_INLINE Ints nibble_pair(Floats first, Floats second) {
  return reinterpret_cast<Ints>(min(max(nearest_pair(first, second), both(-8)), both(7)) + both(8));
}

/// Byte j of a group holds element j low and element j + 16 high; 16 bytes a lane, lane after lane.
CFLOW_INLINE void pack_nibbles(const Floats (&w)[kGroup], Floats scale, uint8_t* data) {
  const Floats inverse = usable_inverse(scale);
  Ints words[4];
#pragma GCC unroll 4
  for (int k = 0; k < 4; k++) {
    // Bytes 0 and 2 of the word, then 1 and 3.
    Ints bytes[2];
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      const Floats* at = w + 4 * k + j;
      const Ints lower = nibble_pair(at[0] * inverse, at[2] * inverse);
      bytes[j] = lower | nibble_pair(at[16] * inverse, at[18] * inverse) << 4;
    }
    words[k] = bytes[0] | bytes[1] << 8;
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

/// Returns the bits of the largest magnitude of each lane, where NaN is larger than any number.
template <class In, bool search>
static inline Ints encode_q4_lanes(const In* weights, uint16_t* scales, uint8_t* data) {
  Floats w[kGroup];
  load_groups(weights, w);
  const Floats peak = signed_peak(w);
  Ints half = half_bits(abs(peak) / 7.0f);
  if constexpr (search) half = search_scales(w, peak, half);
  store_scales(half, scales);
  pack_nibbles(w, half_value(half), data);
  return reinterpret_cast<Ints>(abs(peak));
}

// --- q8_0. ---------------------------------------------------------------------------------------------------------

static inline Ints encode_q8_lanes(const float* weights, uint16_t* scales, uint8_t* data) {
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
  return reinterpret_cast<Ints>(most);
}

/// Calls `encode` for kLanes groups at a time; the rest is filled up with groups of zeros. Returns the largest result.
template <class In, class Encode>
CFLOW_INLINE uint32_t each_lanes(const In* weights, size_t groups, size_t group_bytes, uint16_t* scales, uint8_t* data,
                                 Encode encode) {
  Ints most = {};
  size_t at = 0;
  for (; at + kLanes <= groups; at += kLanes) {
    most = max(most, encode(weights + at * kGroup, scales + at, data + at * group_bytes));
  }
  const size_t rest = groups - at;
  if (rest > 0) {
    In padded[kLanes * kGroup] = {};
    uint16_t padded_scales[kLanes];
    uint8_t padded_data[kLanes * kGroup];
    __builtin_memcpy(padded, weights + at * kGroup, rest * kGroup * sizeof(In));
    most = max(most, encode(padded, padded_scales, padded_data));
    __builtin_memcpy(scales + at, padded_scales, rest * sizeof(uint16_t));
    __builtin_memcpy(data + at * group_bytes, padded_data, rest * group_bytes);
  }
  int32_t largest = 0;
  for (int i = 0; i < kLanes; i++) largest = most[i] > largest ? most[i] : largest;
  return static_cast<uint32_t>(largest);
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
static uint32_t encode_q4_0(const float* weights, size_t groups, bool search, uint16_t* scales, uint8_t* data) {
  using namespace quantizer;
  if (search) return each_lanes(weights, groups, 16, scales, data, encode_q4_lanes<float, true>);
  return each_lanes(weights, groups, 16, scales, data, encode_q4_lanes<float, false>);
}

/// Kernels::encode_q4_0_bf16
static uint32_t encode_q4_0_bf16(const uint16_t* weights, size_t groups, bool search, uint16_t* scales,
                                 uint8_t* data) {
  using namespace quantizer;
  if (search) return each_lanes(weights, groups, 16, scales, data, encode_q4_lanes<uint16_t, true>);
  return each_lanes(weights, groups, 16, scales, data, encode_q4_lanes<uint16_t, false>);
}

/// Kernels::encode_q8_0
static uint32_t encode_q8_0(const float* weights, size_t groups, uint16_t* scales, uint8_t* data) {
  return quantizer::each_lanes(weights, groups, 32, scales, data, quantizer::encode_q8_lanes);
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
