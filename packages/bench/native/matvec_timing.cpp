#include "matvec_timing.h"

#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/memory.h"

#if defined(__linux__)
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace cflow {
namespace {

/// Read misses of the first data cache, of the thread that makes it, user code only.
class MissCounter {
 public:
#if defined(__linux__)
  MissCounter() {
    perf_event_attr event{};
    event.size = sizeof event;
    event.type = PERF_TYPE_HW_CACHE;
    event.config = PERF_COUNT_HW_CACHE_L1D | PERF_COUNT_HW_CACHE_OP_READ << 8 | PERF_COUNT_HW_CACHE_RESULT_MISS << 16;
    event.disabled = event.exclude_kernel = event.exclude_hv = 1;
    fd_ = static_cast<int>(syscall(SYS_perf_event_open, &event, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
    if (fd_ < 0) problem_ = std::string("perf_event_open: ") + std::strerror(errno);
  }
  ~MissCounter() {
    if (fd_ >= 0) close(fd_);
  }
  void start() {
    if (fd_ < 0) return;
    ioctl(fd_, PERF_EVENT_IOC_RESET, 0);
    ioctl(fd_, PERF_EVENT_IOC_ENABLE, 0);
  }
  std::optional<double> stop() {
    uint64_t count;
    if (fd_ < 0) return std::nullopt;
    ioctl(fd_, PERF_EVENT_IOC_DISABLE, 0);
    if (::read(fd_, &count, sizeof count) != sizeof count) return std::nullopt;
    return static_cast<double>(count);
  }
#else
  MissCounter() : problem_("counters are read on Linux only") {}
  void start() {}
  std::optional<double> stop() { return std::nullopt; }
#endif
  MissCounter(const MissCounter&) = delete;
  MissCounter& operator=(const MissCounter&) = delete;
  const std::string& problem() const { return problem_; }

 private:
  int fd_ = -1;
  std::string problem_;
};

/// Splitmix64: the same numbers every time.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
};

/// Copies one row of a tile, `scales` and `data`, to where a layout has it.
void place_row(const MatvecCase& at, uint8_t* matrix, int row, int col, const uint8_t* scales, const uint8_t* data) {
  const int rows = at.rows_at(row / at.stripe_rows * at.stripe_rows);
  const int width = at.cols - col < kTileCols ? at.cols - col : kTileCols;
  const auto r = static_cast<size_t>(row % at.stripe_rows);
  const size_t scale_bytes = 2u * static_cast<size_t>(row_scales(at.dtype, width));
  const size_t data_bytes = row_bytes(at.dtype, width);
  uint8_t* tile = matrix + at.stripe_at(row) +
                  static_cast<size_t>(col / kTileCols) * tile_bytes(at.dtype, rows, kTileCols) + kTileHeaderBytes;
  std::memcpy(tile + r * scale_bytes, scales, scale_bytes);
  std::memcpy(tile + static_cast<size_t>(rows) * scale_bytes + r * data_bytes, data, data_bytes);
}

/// One layout of the matrix.
struct Layout {
  explicit Layout(const MatvecCase& at)
      : matvec(at), weights(at.bytes(), "the matrix"), out(static_cast<size_t>(at.rows)) {}
  MatvecCase matvec;
  Block weights;
  std::vector<float> out;
};

/// Small numbers of any dtype: random bytes under small f16 scales; small f16 or f32 numbers.
void fill(Layout& a, Layout& b) {
  const MatvecCase& at = a.matvec;
  Random random{1};
  alignas(8) uint8_t scales[16], data[4 * kTileCols];
  for (int row = 0; row < at.rows; row++) {
    for (int col = 0; col < at.cols; col += kTileCols) {
      for (size_t i = 0; i < sizeof scales; i += 2) {
        const auto bits = static_cast<uint16_t>(0x2000 + (random.next() & 0x3ff));
        std::memcpy(scales + i, &bits, 2);
      }
      for (size_t i = 0; i < sizeof data; i += 8) {
        const uint64_t bits = random.next() & (at.dtype == Dtype::f16   ? 0xbbffbbffbbffbbffu
                                               : at.dtype == Dtype::f32 ? 0xbfffffffbfffffffu
                                                                        : ~uint64_t{0});
        std::memcpy(data + i, &bits, 8);
      }
      for (Layout* layout : {&a, &b}) place_row(layout->matvec, layout->weights.data(), row, col, scales, data);
    }
  }
}

/// The vector as the kernels read it.
Block activations(const MatvecCase& at, const Kernels& kernels) {
  const auto padded = static_cast<size_t>(ceil_div(at.cols, kTileCols) * kTileCols);
  Block floats(sizeof(float) * padded, "the vector");
  auto* x = reinterpret_cast<float*>(floats.data());
  Random random{2};
  for (int i = 0; i < at.cols; i++) x[i] = static_cast<float>(static_cast<int64_t>(random.next()) >> 11) * 0x1p-52f;
  if (at.arithmetic == Arithmetic::f32) return floats;
  Block row(kernels.q8_row_bytes(at.cols), "the vector");
  kernels.quantize_row(at.dtype, x, at.cols, row.data());
  return row;
}

/// A copy of the vector at another place within a page for each run: stores to one place hold up loads from another
/// that lies a multiple of 4 KiB away, which is nothing that a layout can help.
class MovingVector {
 public:
  explicit MovingVector(const Block& x) : x_(x), copies_(x.size() + kPage, "the vector") {}
  const void* at(int run) {
    uint8_t* copy = copies_.data() + static_cast<size_t>(run) * kStep % kPage;
    std::memcpy(copy, x_.data(), x_.size());
    return copy;
  }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kStep = 13 * kCacheLine;
  const Block& x_;
  Block copies_;
};

void run(Layout& layout, MatvecFn kernel, const void* x, MissCounter& counter, TimedArm* arm) {
  counter.start();
  const auto start = std::chrono::steady_clock::now();
  layout.matvec.multiply(kernel, layout.weights.data(), x, layout.out.data());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const std::optional<double> misses = counter.stop();
  if (arm == nullptr) return;
  arm->seconds.push_back(took.count());
  if (misses) arm->misses.push_back(*misses);
}

}  // namespace

MatvecTiming time_matvec(const MatvecCase& row_major, const Kernels& kernels, int runs) {
  const MatvecFn kernel = kernels.matvec[row_major.arithmetic == Arithmetic::q8][static_cast<int>(row_major.dtype)];
  if (kernel == nullptr) throw Error("USAGE", "tiles of f16 and f32 take f32 activations only");
  MatvecCase tiled = row_major;
  tiled.stripe_rows = kTileRows;
  Layout a(tiled), b(row_major);
  fill(a, b);
  const Block x = activations(row_major, kernels);
  MovingVector moving(x);
  MissCounter counter;
  MatvecTiming timing;
  for (int i = 0; i <= runs; i++) {
    const void* at = moving.at(i);
    run(a, kernel, at, counter, i ? &timing.tiled : nullptr);
    run(b, kernel, at, counter, i ? &timing.row_major : nullptr);
  }
  timing.same = std::memcmp(a.out.data(), b.out.data(), sizeof(float) * a.out.size()) == 0;
  timing.problem = counter.problem();
  return timing;
}

}  // namespace cflow
