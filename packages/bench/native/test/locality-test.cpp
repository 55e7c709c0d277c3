// The simulated caches, on sequences that are counted by hand; and with arguments, one arm of a product of a matrix and
// a vector, for valgrind --tool=cachegrind to count:
//
//   locality-test <isa> <f32|q8> <rows> <cols> <rows of a stripe> <times>
#include <cinttypes>
#include <vector>

#include "../cache_simulation.h"
#include "test/kernel-check.h"

namespace {

using namespace kernel_test;

/// One line of a small cache: 4 sets of 2 ways.
constexpr CacheGeometry kSmall{512, 2};
constexpr CacheGeometry kLarge{4096, 4};
constexpr uint64_t kSetStride = 4 * kCacheLine;

uint64_t misses(const std::vector<uint64_t>& addresses, bool prefetcher = false) {
  CacheModel model(kSmall, kLarge, prefetcher);
  CacheCounts counts;
  for (const uint64_t address : addresses) model.read(address, 4, counts);
  return counts.misses;
}

void check_replacement() {
  const uint64_t a = 0, b = kSetStride, c = 2 * kSetStride;
  expect(misses({a, a + 60, a}) == 1, "a line is fetched once");
  expect(misses({a, b, a, b}) == 2, "two lines of a set stay");
  expect(misses({a, b, c, a}) == 4, "the third takes the place of the first");
  expect(misses({a, b, a, c, a, b}) == 4, "the one that was read again stays; the other is gone");
  expect(misses({a, kCacheLine, 2 * kCacheLine, c, a}) == 4, "other sets do not count");
}

void check_sizes() {
  std::vector<uint64_t> twice;
  for (int round = 0; round < 2; round++) {
    for (uint64_t line = 0; line < 8; line++) twice.push_back(line * kCacheLine);
  }
  expect(misses(twice) == 8, "512 bytes fit");
  std::vector<uint64_t> larger;
  for (int round = 0; round < 3; round++) {
    for (uint64_t line = 0; line < 12; line++) larger.push_back(line * kCacheLine);
  }
  expect(misses(larger) == 36, "768 bytes in rounds: the least recently used is always the next");
}

void check_levels() {
  CacheModel model(kSmall, kLarge, false);
  CacheCounts counts;
  for (int round = 0; round < 2; round++) {
    for (uint64_t line = 0; line < 12; line++) model.read(line * kCacheLine, 4, counts);
  }
  expect(counts.reads == 24 && counts.misses == 24, "768 bytes do not fit the first");
  expect(counts.misses_beyond == 12, "they fit the second");
  model.prefetch(100 * kCacheLine);
  model.read(100 * kCacheLine, 4, counts);
  expect(counts.misses == 25 && counts.misses_beyond == 12, "what was prefetched is in the second only");
  model.write(101 * kCacheLine, 4);
  model.read(101 * kCacheLine, 4, counts);
  expect(counts.misses == 25, "writes fetch, and do not count");
  model.read(103 * kCacheLine - 2, 4, counts);
  expect(counts.reads == 27 && counts.misses == 27, "a read across two lines misses both");
}

void check_prefetcher() {
  std::vector<uint64_t> page;
  for (uint64_t line = 0; line < 64; line++) page.push_back(line * kCacheLine);
  expect(misses(page) == 64, "each line once");
  // 0 and 1 miss; 1 fetches 2 and 3, each line after that two more.
  expect(misses(page, true) == 2, "ascending lines are prefetched");
  std::vector<uint64_t> pages = page;
  for (const uint64_t address : page) pages.push_back(address + 4096);
  expect(misses(pages, true) == 4, "a new page is a new stream");
  std::vector<uint64_t> backwards(page.rbegin(), page.rend());
  expect(misses(backwards, true) == 64, "descending lines are not");
  expect(misses({0, 128, 256, 384}, true) == 2, "every second line is");
  expect(misses({0, 320, 640, 960}, true) == 4, "every fifth is not");
  // 1 fetches 2 and 3, 4 misses and fetches 5 and 6, 5 then 7; 2 was fetched, and is below the highest.
  expect(misses({0, 64, 256, 320, 128, 448}, true) == 3, "out of order within the window");
}

int run_arm(char** arguments) {
  const Kernels* kernels = find_kernels(arguments[0]);
  if (kernels == nullptr) return std::fprintf(stderr, "no such instruction set: %s\n", arguments[0]), 1;
  const bool q8 = std::string(arguments[1]) == "q8";
  const MatvecCase matvec{Dtype::q4_0, q8 ? Arithmetic::q8 : Arithmetic::f32, std::atoi(arguments[2]),
                          std::atoi(arguments[3]), std::atoi(arguments[4])};
  // Zeros: time and misses do not depend on the numbers.
  const auto pages = [](size_t bytes) {
    return static_cast<uint8_t*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  };
  const uint8_t* weights = pages(matvec.bytes());
  const uint8_t* x = pages(q8 ? kernels->q8_row_bytes(matvec.cols) : 4 * static_cast<size_t>(matvec.cols + kTileCols));
  std::vector<float> out(static_cast<size_t>(matvec.rows));
  for (int i = std::atoi(arguments[5]); i > 0; i--) matvec.multiply(kernels->matvec[q8][0], weights, x, out.data());
  return out[0] != 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 7) return run_arm(arguments + 1);
  check_replacement();
  check_sizes();
  check_levels();
  check_prefetcher();
  std::printf("%ld checks passed\n", checks);
}
