// What the kernel tests share: counting checks, random numbers, and memory whose end is guarded.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../kernels/kernels.h"

namespace kernel_test {

using namespace cflow;

inline long checks = 0;

/// Ends the test with a message unless `ok`.
inline void expect(bool ok, const std::string& what) {
  ++checks;
  if (ok) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

inline bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// |got - want| <= tolerance; what is not a number must not be one, and Inf must be the same Inf.
inline void expect_near(double got, double want, double tolerance, const std::string& what) {
  const bool ok = std::isnan(want)   ? std::isnan(got)
                  : std::isinf(want) ? got == want
                                     : std::fabs(got - want) <= tolerance;
  ++checks;
  if (ok) return;
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, ": got %.9g, want %.9g, tolerance %.3g", got, want, tolerance);
  expect(false, what + numbers);
}

/// A fixed sequence (splitmix64), so that a failure repeats.
struct Random {
  uint64_t state;

  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53; }
};

/// Memory that ends where a page begins that may not be touched.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : bytes_(bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    room_ = (bytes + page - 1) / page * page;
    total_ = room_ + page;
    base_ = static_cast<uint8_t*>(mmap(nullptr, total_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    expect(base_ != MAP_FAILED && mprotect(base_ + room_, page, PROT_NONE) == 0, "mmap of guarded memory");
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(base_, total_); }

  uint8_t* data() { return base_ + room_ - bytes_; }
  float* floats() { return reinterpret_cast<float*>(data()); }

 private:
  size_t bytes_, room_, total_;
  uint8_t* base_;
};

inline float f16_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  double x = exponent == 0    ? std::ldexp(fraction, -24)
             : exponent == 31 ? (fraction ? NAN : INFINITY)
                              : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(bits & 0x8000 ? -x : x);
}

}  // namespace kernel_test
