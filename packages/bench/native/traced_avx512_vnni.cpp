// The kernels of kernels/q8_avx512_vnni_matvec.h as they are, with loads and stores that tell of themselves.
#if defined(__AVX512VNNI__)
#include "kernels/trait_avx512.h"
#endif

#include "trace.h"

#include "traced_kernels.h"

#if defined(__AVX512VNNI__)

// A macro is not expanded within itself: what stands in its place is the intrinsic.
#define _mm512_load_si512(p) (trace_read(p, 64), _mm512_load_si512(p))
#define _mm512_loadu_si512(p) (trace_read(p, 64), _mm512_loadu_si512(p))
#define _mm512_load_ps(p) (trace_read(p, 64), _mm512_load_ps(p))
#define _mm512_store_ps(p, x) (trace_write(p, 64), _mm512_store_ps(p, x))
#define _mm512_mask_storeu_ps(p, mask, x) (trace_write(p, 64), _mm512_mask_storeu_ps(p, mask, x))
#define _mm512_maskz_loadu_epi8(mask, p) (trace_read(p, 64), _mm512_maskz_loadu_epi8(mask, p))
#define _mm256_load_ps(p) (trace_read(p, 32), _mm256_load_ps(p))
#define _mm_loadu_si128(p) (trace_read(p, 16), _mm_loadu_si128(p))
#define _mm_maskz_loadu_epi16(mask, p) (trace_read(p, 16), _mm_maskz_loadu_epi16(mask, p))

namespace cflow {
namespace {

#include "kernels/q8_avx512_vnni.h"

#include "kernels/q8_avx512_vnni_matvec.h"

[[maybe_unused]] constexpr auto kNotTraced = vnni_quantize_row;

constexpr TracedKernels kTraced = {
    {{nullptr, nullptr, nullptr, nullptr}, {matvec_q4_0_q8, matvec_q8_0_q8, nullptr, nullptr}}, vnni_q8_row_bytes};

}  // namespace

const TracedKernels* traced_avx512_vnni() { return find_kernels("avx512_vnni") ? &kTraced : nullptr; }

}  // namespace cflow

#else

namespace cflow {

const TracedKernels* traced_avx512_vnni() { return nullptr; }

}  // namespace cflow

#endif
