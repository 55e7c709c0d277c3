// Every kernel of every instruction set that this CPU can run.
//
//   kernel-test                  all of them
//   kernel-test ISA              one
//   kernel-test --list           their names, best first
//   kernel-test --bench [ISA]    GB/s of matvec and GOP/s of matmul, one thread; q8 alone with --bench-q8
#include <algorithm>
#include <chrono>

#include "kernel-check.h"
#include "kernel-matrix.h"
#include "kernel-vector.h"

using namespace kernel_test;

namespace {

void test_selection() {
  int count = 0;
  const Kernels* const* all = available_kernels(&count);
  expect(count >= 1 && std::strcmp(all[count - 1]->isa, "scalar") == 0, "the list ends with scalar");
  for (int i = 0; i < count; ++i) {
    expect(find_kernels(all[i]->isa) == all[i], std::string("find_kernels ") + all[i]->isa);
  }
  expect(find_kernels("") == all[0], "the empty name is the best");
  expect(find_kernels("mmx") == nullptr && find_kernels("avx") == nullptr && find_kernels("AVX2") == nullptr,
         "unknown names give null");
}

void test_table(const Kernels& kernels) {
  const Kernels& scalar = *find_kernels("scalar");
  checks = 0;
  test_selection();
  test_known_values(scalar);
  test_matrices(kernels);
  test_functions(kernels, scalar);
  test_linear(kernels, scalar);
  test_attention(kernels, scalar);
  test_conversions(kernels, scalar);
  std::printf("%s: %ld checks passed\n", kernels.isa, checks);
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The best of some runs, in seconds.
template <class Run>
double best_time(Run run) {
  double best = 1e9;
  const double start = seconds();
  for (int i = 0; i < 50 && (i < 3 || seconds() - start < 0.5); ++i) {
    const double begin = seconds();
    run();
    best = std::min(best, seconds() - begin);
  }
  return best;
}

void bench(const Kernels& k, Dtype dtype, Arithmetic arithmetic) {
  constexpr int kCols = 2048;
  constexpr int kTokens = 64;
  const auto d = static_cast<int>(dtype);
  const auto a = static_cast<int>(arithmetic);
  const size_t bytes = stripe_bytes(dtype, kTileRows, kCols);
  const size_t stripes = (64u << 20) / bytes;
  std::vector<uint8_t> data(bytes * stripes);
  Random random{6};
  Stripe stripe(random, dtype, kTileRows, kCols);
  for (size_t s = 0; s < stripes; ++s) std::memcpy(data.data() + bytes * s, stripe.data(), bytes);
  std::vector<std::unique_ptr<Activations>> x;
  std::vector<const void*> inputs;
  std::vector<std::vector<float>> out(kTokens, output(kTileRows));
  std::vector<float*> outs;
  for (int t = 0; t < kTokens; ++t) {
    x.push_back(std::make_unique<Activations>(random, kCols));
    inputs.push_back(x.back()->input(k, arithmetic, dtype));
    outs.push_back(out[static_cast<size_t>(t)].data());
  }
  const auto gigabytes = [&](size_t distinct) {
    const double time = best_time([&] {
      for (size_t s = 0; s < stripes; ++s) {
        k.matvec[a][d](data.data() + bytes * (s % distinct), kTileRows, kCols, inputs[0], outs[0]);
      }
    });
    return static_cast<double>(data.size()) / time / 1e9;
  };
  const auto gigaops = [&](MatmulFn kernel, int tokens) {
    const double time = best_time([&] {
      for (size_t s = 0; s < 8; ++s) {
        kernel(data.data() + bytes * s, kTileRows, kCols, inputs.data(), tokens, outs.data());
      }
    });
    return 2.0 * 8 * kTileRows * kCols * tokens / time / 1e9;
  };
  std::printf("%-12s %s x %s: matvec %6.1f GB/s, in cache %6.1f; matvecs of 1, 4, 8: %6.1f, %6.1f, %6.1f GOP/s; matmul of 1, 8, 64: %6.1f, %6.1f, %6.1f\n", k.isa,
              kDtypeNames[d], a ? "q8 " : "f32", gigabytes(stripes), gigabytes(1), gigaops(k.matvecs[a][d], 1),
              gigaops(k.matvecs[a][d], 4), gigaops(k.matvecs[a][d], 8), gigaops(k.matmul[a][d], 1),
              gigaops(k.matmul[a][d], 8), gigaops(k.matmul[a][d], kTokens));
}

void bench_q8(const Kernels& k) {
  for (const Dtype dtype : {Dtype::q4_0, Dtype::q8_0}) bench(k, dtype, Arithmetic::q8);
}

void bench_table(const Kernels& k) {
  if (std::strcmp(k.isa, "scalar") == 0) return;
  bench_q8(k);
  for (const Dtype dtype : {Dtype::q4_0, Dtype::f16, Dtype::f32}) bench(k, dtype, Arithmetic::f32);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string mode = arguments.empty() ? "" : arguments[0];
  const bool benching = mode == "--bench" || mode == "--bench-q8";
  const auto run = mode == "--bench" ? bench_table : mode == "--bench-q8" ? bench_q8 : test_table;
  if (benching) arguments.erase(arguments.begin());
  int count = 0;
  const Kernels* const* all = available_kernels(&count);
  if (arguments.empty()) {
    for (int i = 0; i < count; ++i) run(*all[i]);
    return 0;
  }
  if (arguments[0] == "--list") {
    for (int i = 0; i < count; ++i) std::printf("%s\n", all[i]->isa);
    return 0;
  }
  const Kernels* kernels = find_kernels(arguments[0].c_str());
  expect(kernels != nullptr, "this CPU cannot run " + arguments[0]);
  run(*kernels);
  return 0;
}
