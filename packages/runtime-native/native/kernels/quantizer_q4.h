// q4_0: the search for a scale, levels, packing.
// A part of quantizer.h, which includes it inside its namespace.

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
