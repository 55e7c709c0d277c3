// Vectors of the quantizers: a lane is a group; arithmetic, loading, interleaving.
// A part of quantizer.h, which includes it inside its namespace.

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
