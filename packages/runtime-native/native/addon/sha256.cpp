#include "sha256.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace cflow {
namespace {

constexpr size_t kBlockBytes = 64;
constexpr size_t kWords = 8;
constexpr size_t kStreams = 2;

#if defined(__x86_64__)
#define CFLOW_SHA __attribute__((target("sha,sse4.1")))

/// FIPS 180-4, 4.2.2.
alignas(16) constexpr uint32_t kConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSE4_1)) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
}

/// The state as the instructions want it: words a b e f and c d g h, each from the highest lane down.
struct State {
  __m128i abef, cdgh;
};

CFLOW_SHA inline State load_state(const uint32_t* words) {
  const __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words));
  const __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(hgfe, 0x1b);
  return {_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xf0)};
}

CFLOW_SHA inline void store_state(const State& state, uint32_t* words) {
  const __m128i feba = _mm_shuffle_epi32(state.abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(state.cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words + 4), _mm_alignr_epi8(dchg, feba, 8));
}

/// `blocks` blocks of each of `streams` streams, side by side.
template <size_t streams>
CFLOW_SHA void compress(uint32_t* words, const uint8_t* const* from, size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  State state[streams];
  for (size_t s = 0; s < streams; s++) state[s] = load_state(words + kWords * s);
  for (size_t block = 0; block < blocks; block++) {
    State was[streams];
    __m128i message[streams][4];
#pragma GCC unroll 2
    for (size_t s = 0; s < streams; s++) {
      was[s] = state[s];
#pragma GCC unroll 4
      for (size_t i = 0; i < 4; i++) {
        const auto* at = reinterpret_cast<const __m128i*>(from[s] + kBlockBytes * block + 16 * i);
        message[s][i] = _mm_shuffle_epi8(_mm_loadu_si128(at), big_endian);
      }
    }
#pragma GCC unroll 16
    for (size_t round = 0; round < 16; round++) {
      const __m128i constants = _mm_load_si128(reinterpret_cast<const __m128i*>(kConstants + 4 * round));
#pragma GCC unroll 2
      for (size_t s = 0; s < streams; s++) {
        __m128i(&m)[4] = message[s];
        const __m128i sum = _mm_add_epi32(m[round % 4], constants);
        state[s].cdgh = _mm_sha256rnds2_epu32(state[s].cdgh, state[s].abef, sum);
        state[s].abef = _mm_sha256rnds2_epu32(state[s].abef, state[s].cdgh, _mm_shuffle_epi32(sum, 0x0e));
        if (round >= 12) continue;
        const __m128i third = m[(round + 3) % 4];
        const __m128i older = _mm_sha256msg1_epu32(m[round % 4], m[(round + 1) % 4]);
        const __m128i next = _mm_add_epi32(older, _mm_alignr_epi8(third, m[(round + 2) % 4], 4));
        m[round % 4] = _mm_sha256msg2_epu32(next, third);
      }
    }
#pragma GCC unroll 2
    for (size_t s = 0; s < streams; s++) {
      state[s].abef = _mm_add_epi32(state[s].abef, was[s].abef);
      state[s].cdgh = _mm_add_epi32(state[s].cdgh, was[s].cdgh);
    }
  }
  for (size_t s = 0; s < streams; s++) store_state(state[s], words + kWords * s);
}
#else
bool has_instructions() { return false; }
template <size_t streams>
void compress(uint32_t*, const uint8_t* const*, size_t) {}
#endif

/// Both streams as far as the shorter goes, then the rest of the longer.
void compress_both(uint32_t* words, const uint8_t* const (&from)[kStreams], const size_t (&blocks)[kStreams]) {
  const size_t common = std::min(blocks[0], blocks[1]);
  if (common > 0) compress<kStreams>(words, from, common);
  for (size_t s = 0; s < kStreams; s++) {
    const uint8_t* rest = from[s] + kBlockBytes * common;
    if (blocks[s] > common) compress<1>(words + kWords * s, &rest, blocks[s] - common);
  }
}

Napi::Value sha256_blocks(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const auto array = [&](size_t index, napi_typedarray_type type) {
    const Napi::Value value = info[index];
    if (value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == type) return value;
    throw Napi::TypeError::New(env, "sha256Blocks: argument " + std::to_string(index) + " has another type");
  };
  auto states = array(0, napi_uint32_array).As<Napi::Uint32Array>();
  auto first = array(1, napi_uint8_array).As<Napi::Uint8Array>();
  auto second = array(2, napi_uint8_array).As<Napi::Uint8Array>();
  if (states.ElementLength() != kWords * kStreams || first.ByteLength() % kBlockBytes != 0 ||
      second.ByteLength() % kBlockBytes != 0) {
    throw Napi::TypeError::New(env, "sha256Blocks: expected 16 words of state and whole blocks of 64 bytes");
  }
  compress_both(states.Data(), {first.Data(), second.Data()},
                {first.ByteLength() / kBlockBytes, second.ByteLength() / kBlockBytes});
  return env.Undefined();
}

}  // namespace

void export_sha256(Napi::Env env, Napi::Object exports) {
  if (has_instructions()) exports.Set("sha256Blocks", Napi::Function::New(env, sha256_blocks, "sha256Blocks"));
}

}  // namespace cflow
