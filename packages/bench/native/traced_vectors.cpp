#include "trace.h"

#include "traced_kernels.h"

namespace cflow {
namespace {

template <int W>
constexpr TracedKernels traced() {
  using enum Dtype;
  using V = Addresses<W>;
  return {{{matvec_f32<V, q4_0>, matvec_f32<V, q8_0>, matvec_f32<V, f16>, matvec_f32<V, f32>},
           {matvec_q8<V, q4_0>, matvec_q8<V, q8_0>, nullptr, nullptr}},
          q8_row_bytes_of};
}

constexpr TracedKernels kTraced4 = traced<4>();
constexpr TracedKernels kTraced8 = traced<8>();
constexpr TracedKernels kTraced16 = traced<16>();

}  // namespace

const TracedKernels* traced_vectors(int width) {
  return width == 4 ? &kTraced4 : width == 8 ? &kTraced8 : width == 16 ? &kTraced16 : nullptr;
}

}  // namespace cflow
