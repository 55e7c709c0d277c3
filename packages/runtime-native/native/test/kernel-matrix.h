// Matrix kernels against the weights that the test itself wrote into the stripe, in f64. Stripes are unaligned and end
// where the mapping ends; so do activations, on the multiple of 32 that the contract promises.
#pragma once

#include <memory>

#include "kernel-check.h"

namespace kernel_test {

inline const char* const kDtypeNames[] = {"q4_0", "q8_0", "f16", "f32"};

/// Of weights: random ones; ones near zero; all the one of largest magnitude. Of activations: random ones, or all the
/// largest of the group in steps and in 256ths of a step.
enum class Values { any, tiny, extreme };

/// A stripe of weights, and what they are: value = integer * scale or the number.
struct Stripe {
  Dtype dtype;
  int rows, cols;
  Guarded memory;
  std::vector<double> weights;

  Stripe(Random& random, Dtype type, int r, int c, Values values = Values::any)
      : dtype(type), rows(r), cols(c), memory(stripe_bytes(type, r, c)), weights(static_cast<size_t>(r * c)) {
    uint8_t* p = memory.data();
    for (int at = 0; at < cols; at += kTileCols) p = fill_tile(random, p, at, values);
    expect(p == memory.data() + stripe_bytes(dtype, rows, cols), "size of a stripe");
  }

  double& weight(int r, int c) { return weights[static_cast<size_t>(r * cols + c)]; }
  const uint8_t* data() { return memory.data(); }

 private:
  uint8_t* fill_tile(Random& random, uint8_t* p, int at, Values values) {
    const int n = std::min(kTileCols, cols - at);
    for (int i = 0; i < kTileHeaderBytes; ++i) *p++ = static_cast<uint8_t>(random.next());
    const int groups = row_scales(dtype, n);
    uint8_t* scales = p;
    p += 2 * rows * groups;
    for (int r = 0; r < rows; ++r) {
      for (int g = 0; g < groups; ++g) {
        // Either sign; 0, subnormals and numbers from 2^-10 to 2.
        int bits = random.below(24) == 0 ? random.below(1024) : 0x1400 + random.below(0x2c00);
        if (values == Values::tiny) bits = random.below(1024);
        bits |= random.below(2) << 15;
        const auto half = static_cast<uint16_t>(bits);
        std::memcpy(scales + 2 * (r * groups + g), &half, 2);
      }
      for (int c = 0; c < n; ++c) {
        double scale = 1;
        if (groups) {
          uint16_t half;
          std::memcpy(&half, scales + 2 * (r * groups + c / kGroup), 2);
          scale = static_cast<double>(f16_value(half));
        }
        weight(r, at + c) = scale * write_weight(random, p, c, values);
      }
      for (int c = n; groups && c < groups * kGroup; ++c) pad(p, c);
      p += row_bytes(dtype, n);
    }
    return p;
  }

  void pad(uint8_t* row, int c) {
    if (dtype == Dtype::q4_0) put_nibble(row, c, 8);
    if (dtype == Dtype::q8_0) row[c] = 0;
  }

  static void put_nibble(uint8_t* row, int c, int q) {
    uint8_t& byte = row[c / kGroup * 16 + c % 16];
    byte = static_cast<uint8_t>(c % kGroup < 16 ? (byte & 0xf0) | q : (byte & 0x0f) | q << 4);
  }

  double write_weight(Random& random, uint8_t* row, int c, Values values) {
    const bool tiny = values == Values::tiny;
    const bool extreme = values == Values::extreme;
    if (dtype == Dtype::q4_0) {
      const int q = extreme ? 15 : random.below(16);
      put_nibble(row, c, q);
      return q - 8;
    }
    if (dtype == Dtype::q8_0) {
      const int q = extreme ? -128 : random.below(8) == 0 ? (random.below(2) ? 127 : -128) : random.below(256) - 128;
      row[c] = static_cast<uint8_t>(q);
      return q;
    }
    if (dtype == Dtype::f16) {
      const int bits = (tiny ? random.below(1024) : random.below(0x4400)) | random.below(2) << 15;
      const auto half = static_cast<uint16_t>(bits);
      std::memcpy(row + 2 * c, &half, 2);
      return static_cast<double>(f16_value(half));
    }
    const auto x = static_cast<float>(random.uniform(-2, 2) * (tiny ? 1e-39 : 1));
    std::memcpy(row + 4 * c, &x, 4);
    return static_cast<double>(x);
  }
};

/// A vector of activations whose q8 form is known: x = scale * (k + (r + f) / 256) with |r| <= 127 and |f| < 0.45
/// quantizes to k steps and r 256ths.
struct Activations {
  Guarded memory;
  std::unique_ptr<Guarded> row;  // by quantize_row
  /// As they are; with their 256ths, as matvec takes them; without, as matmul does.
  std::vector<double> exact, fine, whole;

  Activations(Random& random, int cols, double size = 1, Values values = Values::any)
      : memory(sizeof(float) * static_cast<size_t>(ceil_div(cols, kGroup) * kGroup)) {
    float* x = memory.floats();
    std::memset(x, 0, sizeof(float) * static_cast<size_t>(ceil_div(cols, kGroup) * kGroup));
    for (int c = 0; c < cols; c += kGroup) {
      const int n = std::min(kGroup, cols - c);
      const int kind = random.below(16);
      if (values == Values::extreme) add_extremes(random, x + c, n, size);
      else if (kind == 0) add(x + c, n, 0, [](int) { return Steps{0, 0, 0}; });
      else if (kind < 3) add_ties(random, x + c, n, size);
      else add_any(random, x + c, n, size);
    }
  }

  const void* input(const Kernels& kernels, Arithmetic arithmetic, Dtype dtype) {
    if (arithmetic == Arithmetic::f32) return memory.data();
    const int cols = static_cast<int>(exact.size());
    row = std::make_unique<Guarded>(kernels.q8_row_bytes(cols));
    expect(kernels.q8_row_bytes(cols) % 64 == 0, "q8_row_bytes is a multiple of 64");
    kernels.quantize_row(dtype, memory.floats(), cols, row->data());
    return row->data();
  }

 private:
  /// Whole ones, 256ths, and what is lost; all of a group are at most 127 in magnitude, one is.
  struct Steps {
    int whole, rest;
    double lost;
  };

  /// n activations of one group, `steps(i)` times amax / 127 each.
  template <class StepsOf>
  void add(float* x, int n, float amax, StepsOf steps) {
    const double scale = static_cast<double>(amax / 127.0f);
    for (int i = 0; i < n; ++i) {
      const Steps s = steps(i);
      const bool peak = std::abs(s.whole) == 127;
      x[i] = peak ? std::copysign(amax, static_cast<float>(s.whole))
                  : static_cast<float>(scale * (s.whole + (s.rest + s.lost) / 256));
      exact.push_back(static_cast<double>(x[i]));
      fine.push_back(scale * (s.whole + s.rest / 256.0));
      whole.push_back(scale * s.whole);
    }
  }

  void add_any(Random& random, float* x, int n, double size) {
    const int peak = random.below(n);
    add(x, n, static_cast<float>(size * random.uniform(0.1, 4)), [&](int i) {
      if (i == peak) return Steps{random.below(2) ? 127 : -127, 0, 0};
      return Steps{random.below(253) - 126, random.below(255) - 127, random.uniform(-0.45, 0.45)};
    });
  }

  /// Halves of a step go to the even one; what that leaves, 128 256ths, is cut to 127.
  void add_ties(Random& random, float* x, int n, double size) {
    const int peak = random.below(n);
    add(x, n, 127 * std::ldexp(1.0f, std::ilogb(size) - 5), [&](int i) {
      if (i == peak) return Steps{127, 0, 0};
      const int sign = random.below(2) ? 1 : -1;
      return Steps{2 * (random.below(125) - 62), 127 * sign, 1.0 * sign};
    });
  }

  void add_extremes(Random& random, float* x, int n, double size) {
    const int sign = random.below(2) ? 1 : -1;
    const int peak = random.below(n);
    add(x, n, static_cast<float>(size), [&](int i) {
      return i == peak ? Steps{127 * sign, 0, 0} : Steps{126 * sign, 127 * sign, 0};
    });
  }
};

struct Case {
  const Kernels& kernels;
  Arithmetic arithmetic;
  Stripe& stripe;
  std::string name;
};

inline Case make_case(const Kernels& kernels, Arithmetic arithmetic, Stripe& stripe) {
  const int d = static_cast<int>(stripe.dtype);
  return {kernels, arithmetic, stripe,
          std::string(kernels.isa) + " " + kDtypeNames[d] + (arithmetic == Arithmetic::q8 ? " x q8 " : " x f32 ") +
              std::to_string(stripe.rows) + "x" + std::to_string(stripe.cols)};
}

constexpr float kCanary = 12345.5f;

/// Compares one output vector with sums over the weights; the vector has a canary behind it.
inline void expect_output(Case& c, const std::vector<double>& values, const std::vector<float>& out,
                          const std::string& kernel) {
  for (int r = 0; r < c.stripe.rows; ++r) {
    double want = 0;
    double size = 0;
    for (int i = 0; i < c.stripe.cols; ++i) {
      const double product = c.stripe.weight(r, i) * values[static_cast<size_t>(i)];
      want += product;
      size += std::fabs(product);
    }
    expect_near(static_cast<double>(out[static_cast<size_t>(r)]), want, 1.5e-6 * size + 1e-43,
                c.name + " " + kernel + " row " + std::to_string(r));
  }
  expect(same_bits(out[static_cast<size_t>(c.stripe.rows)], kCanary), c.name + " " + kernel + " wrote past its output");
}

inline std::vector<float> output(int rows) { return std::vector<float>(static_cast<size_t>(rows) + 1, kCanary); }

inline void run_matmul(Case& c, const std::vector<const void*>& x, int first, int n,
                       std::vector<std::vector<float>>& out) {
  std::vector<float*> outs;
  for (int t = 0; t < n; ++t) outs.push_back(out[static_cast<size_t>(first + t)].data());
  c.kernels.matmul[static_cast<int>(c.arithmetic)][static_cast<int>(c.stripe.dtype)](
      c.stripe.data(), c.stripe.rows, c.stripe.cols, x.data() + first, n, outs.data());
}

/// matvecs gives each vector the bits that matvec gives it.
inline void test_few(const Case& c, const std::vector<const void*>& x) {
  const auto a = static_cast<int>(c.arithmetic);
  const auto d = static_cast<int>(c.stripe.dtype);
  std::vector<std::vector<float>> few(x.size(), output(c.stripe.rows));
  std::vector<float*> outs;
  for (auto& out : few) outs.push_back(out.data());
  c.kernels.matvecs[a][d](c.stripe.data(), c.stripe.rows, c.stripe.cols, x.data(), static_cast<int>(x.size()), outs.data());
  for (size_t t = 0; t < x.size(); ++t) {
    auto alone = output(c.stripe.rows);
    c.kernels.matvec[a][d](c.stripe.data(), c.stripe.rows, c.stripe.cols, x[t], alone.data());
    expect(std::memcmp(few[t].data(), alone.data(), sizeof(float) * alone.size()) == 0,
           c.name + " matvecs of " + std::to_string(x.size()) + " differs from matvec, token " + std::to_string(t));
  }
}

/// matvec, matvecs, matmul, and matmul in two calls, which must give the same bits.
inline void test_products(Random& random, Case c, int tokens, double size = 1, Values values = Values::any) {
  const bool f32 = c.arithmetic == Arithmetic::f32;
  std::vector<std::unique_ptr<Activations>> x;
  std::vector<const void*> inputs;
  for (int t = 0; t < tokens; ++t) {
    x.push_back(std::make_unique<Activations>(random, c.stripe.cols, size, values));
    inputs.push_back(x.back()->input(c.kernels, c.arithmetic, c.stripe.dtype));
  }
  auto single = output(c.stripe.rows);
  c.kernels.matvec[static_cast<int>(c.arithmetic)][static_cast<int>(c.stripe.dtype)](
      c.stripe.data(), c.stripe.rows, c.stripe.cols, inputs[0], single.data());
  expect_output(c, f32 ? x[0]->exact : x[0]->fine, single, "matvec");
  test_few(c, inputs);

  std::vector<std::vector<float>> out(static_cast<size_t>(tokens), output(c.stripe.rows));
  auto split = out;
  run_matmul(c, inputs, 0, tokens, out);
  for (size_t t = 0; t < out.size(); ++t) {
    expect_output(c, f32 ? x[t]->exact : x[t]->whole, out[t],
                  "matmul of " + std::to_string(tokens) + " token " + std::to_string(t));
  }
  const int cut = random.below(tokens);
  if (cut) run_matmul(c, inputs, 0, cut, split);
  run_matmul(c, inputs, cut, tokens - cut, split);
  for (size_t t = 0; t < out.size(); ++t) {
    expect(std::memcmp(out[t].data(), split[t].data(), sizeof(float) * out[t].size()) == 0,
           c.name + " matmul depends on the split, token " + std::to_string(t));
  }
}

/// A NaN or Inf among the activations reaches every output; zeros give zeros.
inline void test_special(Random& random, Case c) {
  const auto matvec = c.kernels.matvec[static_cast<int>(c.arithmetic)][static_cast<int>(c.stripe.dtype)];
  const auto matmul = c.kernels.matmul[static_cast<int>(c.arithmetic)][static_cast<int>(c.stripe.dtype)];
  for (const float special : {NAN, INFINITY, -INFINITY, 0.0f, 1e-42f}) {
    Activations x(random, c.stripe.cols);
    float* values = x.memory.floats();
    if (std::isfinite(special)) {
      for (int i = 0; i < c.stripe.cols; ++i) values[i] = special;
    } else {
      values[random.below(c.stripe.cols)] = special;
    }
    const void* input = x.input(c.kernels, c.arithmetic, c.stripe.dtype);
    auto out = output(c.stripe.rows);
    auto many = output(c.stripe.rows);
    matvec(c.stripe.data(), c.stripe.rows, c.stripe.cols, input, out.data());
    float* outs[] = {many.data()};
    matmul(c.stripe.data(), c.stripe.rows, c.stripe.cols, &input, 1, outs);
    for (int r = 0; r < c.stripe.rows; ++r) {
      for (const float y : {out[static_cast<size_t>(r)], many[static_cast<size_t>(r)]}) {
        const bool ok = std::isfinite(special) ? std::fabs(y) <= std::fabs(special) * 1e7f : !std::isfinite(y);
        expect(ok, c.name + " with activation " + std::to_string(special) + " gives " + std::to_string(y));
      }
    }
  }
}

inline void test_dequantize(Case c) {
  for (int r = 0; r < c.stripe.rows; r += 1 + c.stripe.rows / 7) {
    auto out = output(c.stripe.cols);
    c.kernels.dequantize_row[static_cast<int>(c.stripe.dtype)](c.stripe.data(), c.stripe.rows, c.stripe.cols, r,
                                                               out.data());
    for (int i = 0; i < c.stripe.cols; ++i) {
      expect_near(static_cast<double>(out[static_cast<size_t>(i)]), c.stripe.weight(r, i), 0,
                  c.name + " dequantize_row " + std::to_string(r) + " column " + std::to_string(i));
    }
    expect(same_bits(out.back(), kCanary), c.name + " dequantize_row wrote past its output");
  }
}

inline void test_matrices(const Kernels& kernels) {
  Random random{1};
  const int rows[] = {128, 1, 2, 3, 5, 31, 64, 127};
  const int cols[] = {1, 31, 32, 33, 64, 255, 256, 257, 300, 512, 1000, 2048};
  const int tokens[] = {1, 2, 3, 7, 8, 9, 63, 64, 65, 130};
  int turn = 0;
  for (int d = 0; d < kDtypeCount; ++d) {
    for (int a = 0; a < 2; ++a) {
      if (a == 1 && d > 1) {
        expect(!kernels.matvec[a][d] && !kernels.matmul[a][d], "f16 and f32 tiles have no q8 kernels");
        continue;
      }
      for (const int n : cols) {
        for (const int t : tokens) {
          Stripe stripe(random, static_cast<Dtype>(d), rows[turn++ % 8], n);
          test_products(random, make_case(kernels, static_cast<Arithmetic>(a), stripe), t);
        }
        Stripe stripe(random, static_cast<Dtype>(d), rows[turn++ % 8], n);
        test_special(random, make_case(kernels, static_cast<Arithmetic>(a), stripe));
        test_dequantize(make_case(kernels, static_cast<Arithmetic>(a), stripe));
        Stripe tiny(random, static_cast<Dtype>(d), rows[turn++ % 8], n, Values::tiny);
        test_products(random, make_case(kernels, static_cast<Arithmetic>(a), tiny), 5, 1e20);
        test_products(random, make_case(kernels, static_cast<Arithmetic>(a), stripe), 2, 1e30);
        test_products(random, make_case(kernels, static_cast<Arithmetic>(a), stripe), 2, 1e-30);
        Stripe extreme(random, static_cast<Dtype>(d), rows[turn++ % 8], n, Values::extreme);
        test_products(random, make_case(kernels, static_cast<Arithmetic>(a), extreme), 3, 1, Values::extreme);
      }
    }
  }
}

}  // namespace kernel_test
