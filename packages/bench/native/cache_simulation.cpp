#include "cache_simulation.h"

#include <pthread.h>

#include <cstring>

#include "base/error.h"
#include "base/memory.h"

namespace cflow {
namespace {

/// Memory that the caches see at an address of its own, so that results do not depend on where it happens to lie.
struct Region {
  const uint8_t* data;
  uint64_t bytes, address;
};

struct Recorder {
  CacheModel model;
  Region weights, vectors, stack;
  SimulatedCounts counts;

  struct Place {
    uint64_t address;
    CacheCounts& counts;
  };
  Place place(const void* at) {
    const auto* byte = static_cast<const uint8_t*>(at);
    const auto within = [byte](const Region& region) {
      return reinterpret_cast<uintptr_t>(byte) - reinterpret_cast<uintptr_t>(region.data) < region.bytes;
    };
    const auto moved = [byte](const Region& region) {
      // Prefetches may point beyond the end.
      return region.address + reinterpret_cast<uintptr_t>(byte) - reinterpret_cast<uintptr_t>(region.data);
    };
    if (within(stack)) return {moved(stack), counts.locals};
    if (within(vectors)) return {moved(vectors), counts.vectors};
    return {moved(weights), counts.weights};
  }
};

thread_local Recorder* recorder = nullptr;

struct Job {
  Recorder* recorder;
  const MatvecCase* matvec;
  MatvecFn kernel;
  float* out;

  static void* run(void* job) {
    const Job& at = *static_cast<Job*>(job);
    cflow::recorder = at.recorder;
    at.matvec->multiply(at.kernel, at.recorder->weights.data, at.recorder->vectors.data, at.out);
    cflow::recorder = nullptr;
    return nullptr;
  }
};

/// On a stack of ours: where arrays of the kernel lie within a page decides about the sets of the first cache.
void run_on(const Block& stack, Job& job) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  int failure = pthread_attr_setstack(&attributes, stack.data(), stack.size());
  if (!failure) failure = pthread_create(&thread, &attributes, Job::run, &job);
  pthread_attr_destroy(&attributes);
  if (failure) throw Error("LIMIT_EXCEEDED", std::string("cannot start a thread: ") + std::strerror(failure));
  pthread_join(thread, nullptr);
}

constexpr uint64_t kStackBytes = uint64_t{1} << 21;
constexpr uint64_t kApart = uint64_t{1} << 44;
constexpr uint64_t kPageBytes = 4096;

}  // namespace

void trace_read(const void* at, size_t bytes) {
  auto [address, counts] = recorder->place(at);
  recorder->model.read(address, bytes, counts);
}

void trace_write(const void* at, size_t bytes) { recorder->model.write(recorder->place(at).address, bytes); }

void trace_prefetch(const void* at) { recorder->model.prefetch(recorder->place(at).address); }

SimulatedCounts simulate_matvec(const MatvecCase& matvec, const TracedKernels& kernels, CacheModel model) {
  const bool q8 = matvec.arithmetic == Arithmetic::q8;
  const MatvecFn kernel = kernels.matvec[q8][static_cast<int>(matvec.dtype)];
  if (kernel == nullptr) throw Error("USAGE", "the kernels have no such combination of dtype and arithmetic");
  const auto padded = static_cast<size_t>(ceil_div(matvec.cols, kTileCols) * kTileCols);
  const uint64_t x_bytes = q8 ? kernels.q8_row_bytes(matvec.cols) : sizeof(float) * padded;
  const uint64_t out_at = (x_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const Block weights(matvec.bytes(), "the matrix");
  const Block vectors(out_at + sizeof(float) * static_cast<size_t>(matvec.rows), "the vectors");
  const Block stack(kStackBytes, "the stack");
  Recorder recorder{std::move(model),
                    {weights.data(), weights.size(), kApart},
                    {vectors.data(), vectors.size(), 2 * kApart},
                    {stack.data(), stack.size(), 3 * kApart},
                    {}};
  Job job{&recorder, &matvec, kernel, reinterpret_cast<float*>(vectors.data() + out_at)};
  run_on(stack, job);
  return recorder.counts;
}

}  // namespace cflow
