// Elementwise kernels, written once over a trait V of vector primitives (see trait_avx2.h for what a trait provides).
//
// V::min and V::max return their second operand where either is NaN; clamps rely on it to let NaN through.
#pragma once

#include "layout.h"

namespace cflow {
namespace {

/// a * x + c with a scalar c.
template <class V>
CFLOW_KERNEL typename V::F axpy(typename V::F a, typename V::F x, float c) {
  return V::fma(a, x, V::set1(c));
}

/// e^x, relative error about 1e-7; 0 and Inf where f32 ends, subnormals included.
template <class V>
CFLOW_KERNEL typename V::F exp(typename V::F x) {
  x = V::min(V::set1(89.0f), V::max(V::set1(-104.0f), x));
  const auto n = V::round(V::mul(x, V::set1(1.44269504088896341f)));
  // ln 2 in two parts; the first has 9 bits, so that n times it is exact.
  auto r = V::fma(n, V::set1(-0.693359375f), x);
  r = V::fma(n, V::set1(2.12194440e-4f), r);
  auto p = axpy<V>(V::set1(1.9875691500e-4f), r, 1.3981999507e-3f);
  p = axpy<V>(p, r, 8.3334519073e-3f);
  p = axpy<V>(p, r, 4.1665795894e-2f);
  p = axpy<V>(p, r, 1.6666665459e-1f);
  p = axpy<V>(p, r, 5.0000001201e-1f);
  p = V::add(V::fma(V::mul(r, r), p, r), V::set1(1.0f));
  // Two factors: 2^n itself overflows or is subnormal at either end.
  const auto half = V::round(V::mul(n, V::set1(0.5f)));
  return V::mul(V::mul(p, V::pow2(half)), V::pow2(V::sub(n, half)));
}

/// tanh x: a polynomial near 0, where 1 - 2 / (e^2x + 1) would cancel.
template <class V>
CFLOW_KERNEL typename V::F tanh(typename V::F x) {
  const auto one = V::set1(1.0f);
  const auto a = V::abs(x);
  const auto z = V::mul(x, x);
  auto p = axpy<V>(V::set1(-5.70498872745e-3f), z, 2.06390887954e-2f);
  p = axpy<V>(p, z, -5.37397155531e-2f);
  p = axpy<V>(p, z, 1.33314422036e-1f);
  p = axpy<V>(p, z, -3.33332819422e-1f);
  const auto near = V::fma(V::mul(p, z), x, x);
  const auto far = V::sub(one, V::div(V::set1(2.0f), V::add(exp<V>(V::add(a, a)), one)));
  const auto signed_far = V::select_lt(x, V::zero(), V::sub(V::zero(), far), far);
  return V::select_lt(a, V::set1(0.625f), near, signed_far);
}

/// The normal distribution function, with a small relative error in its left tail too: erfc(z) = t e^(-z^2 + poly(t)),
/// t = 1 / (1 + z / 2) (Numerical Recipes, erfcc), z = |x| / sqrt(2).
template <class V>
CFLOW_KERNEL typename V::F normal_cdf(typename V::F x) {
  const auto one = V::set1(1.0f);
  const auto a = V::min(V::set1(20.0f), V::abs(x));
  const auto t = V::div(one, V::fma(a, V::set1(0.353553390593f), one));
  auto p = axpy<V>(V::set1(0.17087277f), t, -0.82215223f);
  p = axpy<V>(p, t, 1.48851587f);
  p = axpy<V>(p, t, -1.13520398f);
  p = axpy<V>(p, t, 0.27886807f);
  p = axpy<V>(p, t, -0.18628806f);
  p = axpy<V>(p, t, 0.09678418f);
  p = axpy<V>(p, t, 0.37409196f);
  p = axpy<V>(p, t, 1.00002368f);
  p = axpy<V>(p, t, -1.26551223f);
  // a^2 = head^2 + (a - head)(a + head): head has few bits, so its square is exact; one rounding of a^2 would be an
  // error of 1e-5 in the tail.
  const auto head = V::mul(V::round(V::mul(a, V::set1(64.0f))), V::set1(1.0f / 64));
  const auto rest = V::mul(V::sub(a, head), V::add(a, head));
  const auto e = V::mul(exp<V>(V::mul(V::mul(head, head), V::set1(-0.5f))), exp<V>(V::fma(rest, V::set1(-0.5f), p)));
  const auto tail = V::mul(V::mul(t, V::set1(0.5f)), e);
  return V::select_lt(x, V::zero(), tail, V::sub(one, tail));
}

template <class V, Activation A>
CFLOW_KERNEL typename V::F activate(typename V::F x) {
  if constexpr (A == Activation::gelu) return V::mul(x, normal_cdf<V>(x));
  auto u = x;  // 1 + tanh(u) = 2 / (1 + e^-2u)
  if constexpr (A == Activation::gelu_tanh) {
    const auto inner = V::fma(V::mul(V::mul(x, x), V::set1(0.044715f)), x, x);
    u = V::mul(inner, V::set1(1.59576912160573f));
  }
  return V::div(x, V::add(V::set1(1.0f), exp<V>(V::sub(V::zero(), u))));
}

template <class V, Activation A>
void glu(const float* gate, const float* up, size_t n, float* out) {
  size_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) {
    V::store(out + i, V::mul(activate<V, A>(V::load(gate + i)), V::load(up + i)));
  }
  if (const int rest = static_cast<int>(n - i)) {
    V::store_n(out + i, V::mul(activate<V, A>(V::load_n(gate + i, rest)), V::load_n(up + i, rest)), rest);
  }
}

template <class V>
float dot(const float* a, const float* b, size_t n) {
  constexpr int kSums = 4;
  typename V::F sum[kSums];
  for (auto& s : sum) s = V::zero();
  size_t i = 0;
  for (; i + kSums * V::kWidth <= n; i += kSums * V::kWidth) {
    for (int k = 0; k < kSums; ++k) {
      sum[k] = V::fma(V::load(a + i + k * V::kWidth), V::load(b + i + k * V::kWidth), sum[k]);
    }
  }
  for (; i + V::kWidth <= n; i += V::kWidth) sum[0] = V::fma(V::load(a + i), V::load(b + i), sum[0]);
  if (const int rest = static_cast<int>(n - i)) {
    sum[1] = V::fma(V::load_n(a + i, rest), V::load_n(b + i, rest), sum[1]);
  }
  return V::hsum(V::add(V::add(sum[0], sum[1]), V::add(sum[2], sum[3])));
}

template <class V>
void rms_norm(const float* x, const float* weight, size_t n, float eps, float* out) {
  double squares = static_cast<double>(dot<V>(x, x, n));
  if (!(squares < 3e38)) {  // f32 overflowed: squares of numbers from 1e19, or Inf or NaN
    squares = 0;
    for (size_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  const double mean = squares / static_cast<double>(n) + static_cast<double>(eps);
  const auto scale = V::set1(static_cast<float>(1.0 / __builtin_sqrt(mean)));
  size_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) {
    const auto y = V::mul(V::load(x + i), scale);
    V::store(out + i, weight ? V::mul(y, V::load(weight + i)) : y);
  }
  if (const int rest = static_cast<int>(n - i)) {
    const auto y = V::mul(V::load_n(x + i, rest), scale);
    V::store_n(out + i, weight ? V::mul(y, V::load_n(weight + i, rest)) : y, rest);
  }
}

template <class V>
void rope(float* head, const float* cos, const float* sin, size_t half) {
  for (size_t i = 0; i < half; i += V::kWidth) {
    const int n = half - i < V::kWidth ? static_cast<int>(half - i) : V::kWidth;
    const auto a = V::load_n(head + i, n);
    const auto b = V::load_n(head + half + i, n);
    const auto c = V::load_n(cos + i, n);
    const auto s = V::load_n(sin + i, n);
    V::store_n(head + i, V::sub(V::mul(a, c), V::mul(b, s)), n);
    V::store_n(head + half + i, V::add(V::mul(a, s), V::mul(b, c)), n);
  }
}

/// The largest number; NaN may or may not be overlooked.
template <class V>
CFLOW_KERNEL float largest(const float* x, size_t n) {
  float most = x[0];
  size_t i = 0;
  if (n >= V::kWidth) {
    auto m = V::load(x);
    for (i = V::kWidth; i + V::kWidth <= n; i += V::kWidth) m = V::max(m, V::load(x + i));
    most = V::hmax(m);
  }
  for (; i < n; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

template <class V>
void softmax(float* x, size_t n) {
  if (n == 0) return;
  const auto most = V::set1(largest<V>(x, n));
  // A NaN that `most` overlooked makes the sum NaN, and with it every output.
  auto sum = V::zero();
  size_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) {
    const auto e = exp<V>(V::sub(V::load(x + i), most));
    V::store(x + i, e);
    sum = V::add(sum, e);
  }
  float rest_sum = 0;
  if (const int rest = static_cast<int>(n - i)) {
    V::store_n(x + i, exp<V>(V::sub(V::load_n(x + i, rest), most)), rest);
    for (int k = 0; k < rest; ++k) rest_sum += x[i + static_cast<size_t>(k)];
  }
  const auto scale = V::set1(1.0f / (V::hsum(sum) + rest_sum));
  for (i = 0; i + V::kWidth <= n; i += V::kWidth) V::store(x + i, V::mul(V::load(x + i), scale));
  if (const int rest = static_cast<int>(n - i)) V::store_n(x + i, V::mul(V::load_n(x + i, rest), scale), rest);
}

template <class V>
void softcap(float* x, size_t n, float cap) {
  const auto c = V::set1(cap);
  for (size_t i = 0; i < n; i += V::kWidth) {
    const int rest = n - i < V::kWidth ? static_cast<int>(n - i) : V::kWidth;
    V::store_n(x + i, V::mul(c, tanh<V>(V::div(V::load_n(x + i, rest), c))), rest);
  }
}

template <class V>
void weighted_sum(const float* const* terms, const float* coefficients, int count, size_t n, float* out) {
  for (size_t i = 0; i < n; i += V::kWidth) {
    const int rest = n - i < V::kWidth ? static_cast<int>(n - i) : V::kWidth;
    auto sum = V::zero();
    for (int t = 0; t < count; ++t) sum = V::fma(V::set1(coefficients[t]), V::load_n(terms[t] + i, rest), sum);
    V::store_n(out + i, sum, rest);
  }
}

}  // namespace
}  // namespace cflow
