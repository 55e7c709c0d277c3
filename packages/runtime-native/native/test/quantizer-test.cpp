// The quantizers of every instruction set that this CPU has: bytes equal to the scalar ones, and both to what
// packages/format/src/tiles/quantize.ts gives (packages/format/test/quantize.test.ts has the same hashes).
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "../kernels/kernels.h"

namespace {

using cflow::Kernels;
using cflow::kGroup;

int failures = 0;

void check(bool ok, const char* isa, const std::string& what) {
  if (ok) return;
  failures++;
  std::printf("FAILED %s: %s\n", isa, what.c_str());
}

/// Numerical Recipes' generator; the tests in TypeScript use the same one.
struct Random {
  uint32_t state;
  uint32_t next() { return state = state * 1664525u + 1013904223u; }
};

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

/// Groups of magnitudes from far under what f16 holds to 2^18, weights of a group up to 2^7 apart, one in 64 zero.
std::vector<float> generate(size_t groups, uint32_t seed) {
  Random random{seed};
  std::vector<float> weights;
  weights.reserve(groups * kGroup);
  for (size_t g = 0; g < groups; g++) {
    const uint32_t top = 95 + (random.next() >> 24) % 50;
    for (int i = 0; i < kGroup; i++) {
      const uint32_t bits = random.next();
      const uint32_t exponent = top - (random.next() >> 29);
      const bool zero = random.next() >> 26 == 0;
      weights.push_back(zero ? 0.0f : from_bits((bits & 0x807fffffu) | exponent << 23));
    }
  }
  return weights;
}

struct Encoded {
  std::vector<uint16_t> scales;
  std::vector<uint8_t> data;
  bool operator==(const Encoded&) const = default;
};

enum class Rule { report, search, q8 };
constexpr const char* kRuleNames[] = {"q4_0 report", "q4_0 search", "q8_0"};

Encoded encode(const Kernels& kernels, Rule rule, const std::vector<float>& weights) {
  const size_t groups = weights.size() / kGroup;
  const size_t bytes = rule == Rule::q8 ? 32 : 16;
  // One group more than written: what stands there must stay.
  Encoded out{std::vector<uint16_t>(groups + 1, 0xabcd), std::vector<uint8_t>((groups + 1) * bytes, 0x5a)};
  if (rule == Rule::q8) kernels.encode_q8_0(weights.data(), groups, out.scales.data(), out.data.data());
  else kernels.encode_q4_0(weights.data(), groups, rule == Rule::search, out.scales.data(), out.data.data());
  return out;
}

/// FNV-1a over scales (little endian) and data of all groups.
uint32_t hash(const Encoded& encoded) {
  uint32_t h = 0x811c9dc5u;
  const auto add = [&h](unsigned byte) { h = (h ^ byte) * 0x01000193u; };
  for (size_t g = 0; g + 1 < encoded.scales.size(); g++) {
    add(encoded.scales[g] & 0xff);
    add(encoded.scales[g] >> 8);
  }
  const size_t group_bytes = encoded.data.size() / encoded.scales.size();
  for (size_t i = 0; i + group_bytes < encoded.data.size(); i++) add(encoded.data[i]);
  return h;
}

std::vector<float> group_of(std::vector<float> first) {
  first.resize(kGroup);
  return first;
}

/// Groups that are a case of their own.
std::vector<float> corner_groups() {
  std::vector<float> all;
  const auto add = [&all](const std::vector<float>& group) { all.insert(all.end(), group.begin(), group.end()); };
  add(group_of({}));
  add(std::vector<float>(kGroup, -0.0f));
  add(group_of({1e-40f, -1e-42f, 1e-45f}));
  add(group_of({0x1p-25f * 6.9f, -0x1p-26f}));
  add(group_of({7 * 0x1p-24f, -3 * 0x1p-24f}));
  for (const float steps : {0.5f, 0.51f, 1.0f, 63.0f, 127.5f, 127.6f, 190.0f, 254.9f, 255.1f}) {
    add(group_of({steps * 0x1p-24f, -0x1p-24f, 0x1p-25f}));
  }
  add(group_of({458528.0f, -458528.0f, 1.0f}));
  add(group_of({-458528.0f, 0x1p-20f}));
  add(std::vector<float>(kGroup, 458528.0f));
  add(std::vector<float>(kGroup, 0x1.fffffep17f));
  add(group_of({65504.0f * 127, -3.0f}));
  add(group_of({1.0f, -1.0f, 1.0f, -1.0f}));
  std::vector<float> exact;
  for (int i = 0; i < kGroup; i++) exact.push_back(static_cast<float>(i % 16 - 8) * 0.25f);
  add(exact);
  return all;
}

void check_same(const Kernels& kernels, const Kernels& scalar) {
  for (const Rule rule : {Rule::report, Rule::search, Rule::q8}) {
    const char* name = kRuleNames[static_cast<int>(rule)];
    // 3 + 16k groups and fewer than any vector has lanes.
    for (size_t groups = 0; groups <= 35; groups++) {
      const std::vector<float> weights = generate(groups, static_cast<uint32_t>(groups));
      check(encode(kernels, rule, weights) == encode(scalar, rule, weights), kernels.isa,
            std::string(name) + ", groups: " + std::to_string(groups));
    }
    const std::vector<float> corners = corner_groups();
    check(encode(kernels, rule, corners) == encode(scalar, rule, corners), kernels.isa,
          std::string(name) + ", corner cases");
  }
}

/// bf16 and f32 give the same where both hold the weights, and the largest magnitude is seen wherever it stands.
void check_bf16(const Kernels& kernels) {
  for (size_t groups = 1; groups <= 35; groups++) {
    std::vector<float> weights = generate(groups, static_cast<uint32_t>(groups));
    std::vector<uint16_t> halves;
    for (float& weight : weights) {
      uint32_t bits;
      std::memcpy(&bits, &weight, 4);
      halves.push_back(static_cast<uint16_t>(bits >> 16));
      weight = from_bits(bits & 0xffff0000u);
    }
    for (const Rule rule : {Rule::report, Rule::search}) {
      Encoded out{std::vector<uint16_t>(groups + 1, 0xabcd), std::vector<uint8_t>((groups + 1) * 16, 0x5a)};
      kernels.encode_q4_0_bf16(halves.data(), groups, rule == Rule::search, out.scales.data(), out.data.data());
      check(out == encode(kernels, rule, weights), kernels.isa, "bf16, groups: " + std::to_string(groups));
    }
  }
}

void check_largest(const Kernels& kernels) {
  constexpr size_t kGroups = 19;
  std::vector<uint16_t> scales(kGroups);
  std::vector<uint8_t> data(kGroups * 32);
  for (const uint32_t bits : {0x40000000u, 0xc0000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u}) {
    for (const size_t at : {size_t{0}, size_t{33}, size_t{511}, size_t{512}, kGroups * kGroup - 1}) {
      std::vector<float> weights(kGroups * kGroup, -1.5f);
      std::vector<uint16_t> halves(weights.size(), 0x3fc0);
      weights[at] = from_bits(bits);
      halves[at] = static_cast<uint16_t>(bits >> 16);
      const uint32_t found[] = {
          kernels.encode_q4_0(weights.data(), kGroups, true, scales.data(), data.data()),
          kernels.encode_q4_0_bf16(halves.data(), kGroups, true, scales.data(), data.data()),
          kernels.encode_q8_0(weights.data(), kGroups, scales.data(), data.data()),
      };
      for (const uint32_t largest : found) {
        check(largest == (bits & 0x7fffffffu), kernels.isa, "largest magnitude at " + std::to_string(at));
      }
    }
  }
}

struct Golden {
  Rule rule;
  uint32_t hash;
};
/// Of generate(4096, 42); computed by quantize.ts.
constexpr Golden kGolden[] = {{Rule::report, 1288827182u}, {Rule::search, 1962190701u}, {Rule::q8, 4090728927u}};

void check_golden(const Kernels& kernels) {
  const std::vector<float> weights = generate(4096, 42);
  for (const auto& [rule, expected] : kGolden) {
    const uint32_t found = hash(encode(kernels, rule, weights));
    check(found == expected, kernels.isa,
          std::string(kRuleNames[static_cast<int>(rule)]) + ", golden hash: " + std::to_string(found));
  }
  // Worked out by hand: s = 1; element 0 low in byte 0, element 16 high in it.
  std::vector<float> row(kGroup);
  row[0] = 7;
  row[1] = -7;
  row[16] = 3;
  row[31] = -1;
  const Encoded by_hand = encode(kernels, Rule::report, row);
  std::vector<uint8_t> expected(32, 0x5a);
  for (int i = 0; i < 16; i++) expected[static_cast<size_t>(i)] = 0x88;
  expected[0] = 0xbf;
  expected[1] = 0x81;
  expected[15] = 0x78;
  check(by_hand.scales[0] == 0x3c00 && by_hand.data == expected, kernels.isa, "q4_0 group by hand");
}

/// binary16 by its definition.
float half_by_definition(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 0x3ff;
  const float sign = half & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  if (exponent == 31) return mantissa ? std::nanf("") : sign * std::numeric_limits<float>::infinity();
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

void check_conversions(const Kernels& kernels) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); i++) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> values(halves.size());
  kernels.f16_to_f32(halves.data(), halves.size(), values.data());
  std::vector<uint16_t> back(halves.size());
  kernels.f32_to_f16(values.data(), values.size(), back.data());
  for (size_t i = 0; i < halves.size(); i++) {
    const float expected = half_by_definition(halves[i]);
    const bool nan = std::isnan(expected);
    const std::string what = "f16 " + std::to_string(i);
    check(nan ? std::isnan(values[i]) : values[i] == expected && std::signbit(values[i]) == std::signbit(expected),
          kernels.isa, what);
    check(nan ? (back[i] & 0x7fff) > 0x7c00 : back[i] == halves[i], kernels.isa, what + " back");
  }
  // Between two neighbours: the middle goes to the even one, what is beyond it up, what is before it down.
  for (uint32_t i = 0; i < 0x7bff; i++) {
    const float low = half_by_definition(static_cast<uint16_t>(i));
    const float middle = low + (half_by_definition(static_cast<uint16_t>(i + 1)) - low) / 2;
    const float in[3] = {std::nextafterf(middle, 0.0f), middle, std::nextafterf(middle, 1e30f)};
    uint16_t out[3];
    kernels.f32_to_f16(in, 3, out);
    check(out[0] == i && out[1] == i + (i & 1) && out[2] == i + 1, kernels.isa, "f16 rounding at " + std::to_string(i));
  }
  const float large[2] = {65519.996f, 65520.0f};
  uint16_t out[2];
  kernels.f32_to_f16(large, 2, out);
  check(out[0] == 0x7bff && out[1] == 0x7c00, kernels.isa, "f16 overflow");
  kernels.bf16_to_f32(halves.data(), halves.size(), values.data());
  for (size_t i = 0; i < halves.size(); i++) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], 4);
    check(bits == i << 16, kernels.isa, "bf16 " + std::to_string(i));
  }
}

void check_find_nonfinite(const Kernels& kernels) {
  std::vector<float> values(1000, 3.4e38f);
  check(kernels.find_nonfinite(values.data(), values.size()) == 1000, kernels.isa, "finite");
  for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {size_t{0}, size_t{15}, size_t{255}, size_t{256}, size_t{777}, size_t{999}}) {
      std::vector<float> with = values;
      with[at] = with[999] = bad;
      check(kernels.find_nonfinite(with.data(), with.size()) == at, kernels.isa, "find " + std::to_string(at));
      check(kernels.find_nonfinite(with.data(), at) == at, kernels.isa, "ends at " + std::to_string(at));
    }
  }
}

}  // namespace

int main() {
  int count = 0;
  const Kernels* const* all = cflow::available_kernels(&count);
  const Kernels* scalar = cflow::find_kernels("scalar");
  if (count == 0 || scalar == nullptr) {
    std::printf("FAILED: no scalar kernels\n");
    return 1;
  }
  for (int i = 0; i < count; i++) {
    check_same(*all[i], *scalar);
    check_bf16(*all[i]);
    check_largest(*all[i]);
    check_golden(*all[i]);
    check_conversions(*all[i]);
    check_find_nonfinite(*all[i]);
    std::printf("%s: quantizers checked\n", all[i]->isa);
  }
  if (failures) std::printf("%d failures\n", failures);
  return failures ? 1 : 0;
}
