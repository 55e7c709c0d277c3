// q8_0: levels and their order in bytes.
// A part of quantizer.h, which includes it inside its namespace.

/// f16 bits of most / 127; the next f16 where that one, a subnormal, is so small that the largest weight would be clipped.
CFLOW_INLINE Ints q8_scales(Floats most) {
  const Ints half = half_bits(most / 127.0f);
  // A comparison is -1 where it holds.
  return half - ((most > half_value(half) * 127.5f) & (most > all(0x1p-25f)));
}

static inline Ints encode_q8_lanes(const float* weights, uint16_t* scales, uint8_t* data) {
  Floats w[kGroup];
  load_groups(weights, w);
  const Floats most = abs(signed_peak(w));
  const Ints half = q8_scales(most);
  const Floats inverse = usable_inverse(half_value(half));
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
