// Elementwise, attention and conversion kernels against the scalar ones, and those against known values.
#pragma once

#include "kernel-matrix.h"

namespace kernel_test {

using Vector = std::vector<float>;

inline Vector random_vector(Random& random, size_t n, double low, double high) {
  Vector x(n);
  for (float& v : x) v = static_cast<float>(random.uniform(low, high));
  return x;
}

inline void expect_vectors(const float* got, const Vector& want, double relative, double absolute,
                           const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    const double w = static_cast<double>(want[i]);
    expect_near(static_cast<double>(got[i]), w, relative * std::fabs(w) + absolute,
                what + " [" + std::to_string(i) + "]");
  }
}

/// Runs `kernel(k, in, out)` with both tables on guarded, unaligned buffers of n and compares the outputs.
template <class Kernel>
void compare(const Kernels& kernels, const Kernels& scalar, const Vector& x, double relative, double absolute,
             const std::string& name, Kernel kernel) {
  Guarded memory(sizeof(float) * x.size());
  Vector want = x;
  std::memcpy(memory.data(), x.data(), sizeof(float) * x.size());
  kernel(kernels, memory.floats());
  kernel(scalar, want.data());
  expect_vectors(memory.floats(), want, relative, absolute,
                 kernels.isa + (" " + name) + " of " + std::to_string(x.size()));
}

inline void test_functions(const Kernels& k, const Kernels& scalar) {
  Random random{2};
  const char* const names[] = {"gelu", "gelu_tanh", "silu"};
  // gelu_tanh's exponent is a cubic: its rounding grows with it.
  const double tolerance[] = {1.5e-6, 1.5e-5, 1e-6};
  for (const size_t n : {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 100, 257, 1000}) {
    for (const double range : {0.01, 1.0, 6.0, 13.0, 120.0}) {
      Vector x = random_vector(random, n, -range, range);
      if (n > 8) x[random.next() % n] = NAN;
      const Vector up = random_vector(random, n, 0.5, 1);
      for (int a = 0; a < kActivationCount; ++a) {
        compare(k, scalar, x, tolerance[a], 1e-36, names[a],
                [&](const Kernels& t, float* v) { t.glu[a](v, up.data(), n, v); });
      }
      compare(k, scalar, x, 1e-6, 0, "softcap", [&](const Kernels& t, float* v) { t.softcap(v, n, 2.5f); });
      // The difference from the largest, at most 2 * range, is rounded before its exponential is taken.
      const double rounding = 1e-6 + 2 * range * 6e-8;
      compare(k, scalar, x, rounding, 1e-40, "softmax", [&](const Kernels& t, float* v) { t.softmax(v, n); });
      for (float& v : x) v = std::isnan(v) ? 0 : v;
      compare(k, scalar, x, rounding, 1e-40, "softmax", [&](const Kernels& t, float* v) { t.softmax(v, n); });
      x[n / 2] = -INFINITY;
      compare(k, scalar, x, rounding, 1e-40, "softmax with -Inf", [&](const Kernels& t, float* v) { t.softmax(v, n); });
      x[n / 2] = INFINITY;
      compare(k, scalar, x, 1e-6, 1e-40, "softmax with Inf", [&](const Kernels& t, float* v) { t.softmax(v, n); });
      compare(k, scalar, x, 1e-6, 0, "softcap with Inf", [&](const Kernels& t, float* v) { t.softcap(v, n, 30.0f); });
    }
  }
}

inline void test_linear(const Kernels& k, const Kernels& scalar) {
  Random random{3};
  for (const size_t n : {1, 3, 8, 15, 16, 17, 31, 64, 65, 127, 130, 1000, 4096}) {
    for (const double size : {1.0, 1e-25, 1e25}) {
      const Vector x = random_vector(random, n, -size, size);
      const Vector w = random_vector(random, n, -2, 2);
      compare(k, scalar, x, 1e-6, 0, "rms_norm",
              [&](const Kernels& t, float* v) { t.rms_norm(v, w.data(), n, 1e-5f, v); });
      compare(k, scalar, x, 1e-6, 0, "rms_norm",
              [&](const Kernels& t, float* v) { t.rms_norm(v, nullptr, n, 1e-6f, v); });
      double sum = 0;
      for (size_t i = 0; i < n; ++i) sum += std::fabs(static_cast<double>(x[i]) * static_cast<double>(w[i]));
      Guarded end(sizeof(float) * n);
      std::memcpy(end.data(), x.data(), sizeof(float) * n);
      expect_near(static_cast<double>(k.dot(end.floats(), w.data(), n)),
                  static_cast<double>(scalar.dot(x.data(), w.data(), n)), 1e-6 * sum, std::string(k.isa) + " dot");
    }
    const Vector head = random_vector(random, 2 * n, -3, 3);
    Vector cos(n), sin(n);
    for (size_t i = 0; i < n; ++i) {
      const double angle = random.uniform(-100, 100);
      cos[i] = static_cast<float>(std::cos(angle));
      sin[i] = static_cast<float>(std::sin(angle));
    }
    compare(k, scalar, head, 0, 1e-6, "rope",
            [&](const Kernels& t, float* v) { t.rope(v, cos.data(), sin.data(), n); });
    for (int count = 1; count <= 5; ++count) {
      std::vector<Vector> terms;
      for (int t = 0; t < count; ++t) terms.push_back(random_vector(random, n, -1, 1));
      const Vector coefficients = random_vector(random, static_cast<size_t>(count), -1, 1);
      compare(k, scalar, terms[0], 0, 1e-6, "weighted_sum", [&](const Kernels& t, float* v) {
        std::vector<const float*> p{v};  // in place: the first term is the output
        for (int i = 1; i < count; ++i) p.push_back(terms[static_cast<size_t>(i)].data());
        t.weighted_sum(p.data(), coefficients.data(), count, n, v);
      });
    }
  }
  Vector nan(40, 1.0f);
  nan[7] = NAN;
  for (float& v : nan) v *= 2;
  compare(k, scalar, nan, 0, 0, "rms_norm with NaN",
          [&](const Kernels& t, float* v) { t.rms_norm(v, nullptr, 40, 1e-5f, v); });
}

/// One page of the KV cache: stored by the table under test, read by both.
inline void test_attention(const Kernels& k, const Kernels& scalar) {
  Random random{4};
  for (int type = 0; type < kCacheTypeCount; ++type) {
    for (const int dim : {1, 4, 20, 64, 65, 80, 128, 256}) {
      const size_t page = static_cast<size_t>(kPage * dim * (type ? 2 : 4));
      Guarded keys(page), values(page);
      std::vector<uint8_t> keys_want(page), values_want(page);
      for (int j = 0; j < kPage; ++j) {
        const Vector x = random_vector(random, static_cast<size_t>(dim), -2, 2);
        k.store_key[type](x.data(), dim, j, keys.data());
        k.store_value[type](x.data(), dim, j, values.data());
        scalar.store_key[type](x.data(), dim, j, keys_want.data());
        scalar.store_value[type](x.data(), dim, j, values_want.data());
      }
      expect(std::memcmp(keys.data(), keys_want.data(), page) == 0, std::string(k.isa) + " store_key");
      expect(std::memcmp(values.data(), values_want.data(), page) == 0, std::string(k.isa) + " store_value");
      for (const int m : {1, 2, 3, 4, 5, 8, 13}) {
        std::vector<Vector> q, out, out_want;
        std::vector<const float*> q_at;
        std::vector<float*> out_at, want_at;
        for (int i = 0; i < m; ++i) {
          q.push_back(random_vector(random, static_cast<size_t>(dim), -2, 2));
          out.push_back(random_vector(random, static_cast<size_t>(dim), -2, 2));
        }
        out_want = out;
        for (size_t i = 0; i < q.size(); ++i) {
          q_at.push_back(q[i].data());
          out_at.push_back(out[i].data());
          want_at.push_back(out_want[i].data());
        }
        const size_t stride = 80;
        const int count = 1 + random.below(kPage);
        const int first = random.below(count);
        Vector got(stride * static_cast<size_t>(m), kCanary), want = got;
        k.scores[type](q_at.data(), m, keys.data(), dim, count, 0.125f, got.data(), stride);
        scalar.scores[type](q_at.data(), m, keys.data(), dim, count, 0.125f, want.data(), stride);
        const std::string name = std::string(k.isa) + " dim " + std::to_string(dim) + " count " + std::to_string(count);
        for (int i = 0; i < m; ++i) {
          for (int j = 0; j < static_cast<int>(stride); ++j) {
            const size_t at = static_cast<size_t>(i) * stride + static_cast<size_t>(j);
            if (j >= count && j < ceil_div(count, kKeyLanes) * kKeyLanes) continue;
            expect_near(static_cast<double>(got[at]), static_cast<double>(want[at]), j < count ? 3e-7 * dim : 0,
                        name + " scores");
          }
        }
        const Vector p = random_vector(random, got.size(), 0, 1);
        k.mix[type](p.data(), stride, m, values.data(), dim, first, count, out_at.data());
        scalar.mix[type](p.data(), stride, m, values.data(), dim, first, count, want_at.data());
        for (size_t i = 0; i < out.size(); ++i) expect_vectors(out[i].data(), out_want[i], 0, 2e-5, name + " mix");
      }
    }
  }
}

/// Conversions and quantizers: the same bytes as the scalar table, f16 against its definition.
inline void test_conversions(const Kernels& k, const Kernels& scalar) {
  Random random{5};
  std::vector<uint16_t> bits(65536), back(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  Vector x(65536), y(65536);
  k.f16_to_f32(bits.data(), bits.size(), x.data());
  for (size_t i = 0; i < x.size(); ++i) {
    expect_near(static_cast<double>(x[i]), static_cast<double>(f16_value(bits[i])), 0, "f16_to_f32");
  }
  k.f32_to_f16(x.data(), x.size(), back.data());
  for (size_t i = 0; i < x.size(); ++i) {
    expect(std::isnan(x[i]) ? (back[i] & 0x7fff) > 0x7c00 : back[i] == bits[i], "f32_to_f16");
  }
  k.bf16_to_f32(bits.data(), bits.size(), y.data());
  for (size_t i = 0; i < y.size(); ++i) {
    const uint32_t wide = static_cast<uint32_t>(i) << 16;
    expect(std::memcmp(&y[i], &wide, 4) == 0, "bf16_to_f32");
  }
  for (const size_t groups : {1, 2, 15, 16, 17, 100}) {
    const Vector w = random_vector(random, groups * kGroup, -1, 1);
    std::vector<uint16_t> scales(groups), scales_want(groups);
    std::vector<uint8_t> data(32 * groups), data_want(32 * groups);
    for (int mode = 0; mode < 3; ++mode) {
      const auto encode = [&](const Kernels& t, uint16_t* s, uint8_t* d) {
        if (mode == 2) t.encode_q8_0(w.data(), groups, s, d);
        if (mode < 2) t.encode_q4_0(w.data(), groups, mode == 1, s, d);
      };
      encode(k, scales.data(), data.data());
      encode(scalar, scales_want.data(), data_want.data());
      expect(scales == scales_want && data == data_want, std::string(k.isa) + " encodes other bytes than scalar");
    }
  }
  for (const size_t n : {1, 7, 16, 33, 100}) {
    Vector w = random_vector(random, n, -1, 1);
    expect(k.find_nonfinite(w.data(), n) == n, "find_nonfinite in finite numbers");
    const size_t at = random.next() % n;
    w[at] = random.below(2) ? NAN : -INFINITY;
    expect(k.find_nonfinite(w.data(), n) == at, "find_nonfinite");
  }
}

/// The scalar table against known values of the functions, not computed by it.
inline void test_known_values(const Kernels& scalar) {
  const float one = 1;
  const auto act = [&](Activation a, float x) {
    float out;
    scalar.glu[static_cast<int>(a)](&x, &one, 1, &out);
    return static_cast<double>(out);
  };
  expect_near(act(Activation::gelu, 1), 0.841344746068543, 6e-8, "gelu(1)");
  expect_near(act(Activation::gelu, -5), -1.43325785939597e-6, 1e-13, "gelu(-5)");
  expect_near(act(Activation::gelu_tanh, 1), 0.841191990608276, 6e-8, "gelu_tanh(1)");
  expect_near(act(Activation::silu, 1), 0.731058578630005, 6e-8, "silu(1)");
  float cap = 5;
  scalar.softcap(&cap, 1, 5);
  expect_near(static_cast<double>(cap), 3.80797077977882, 3e-7, "softcap(5, 5)");
  float x[] = {0, 0, 0.693147180559945f};
  scalar.softmax(x, 3);
  expect_near(static_cast<double>(x[2]), 0.5, 1e-7, "softmax");
}

}  // namespace kernel_test
