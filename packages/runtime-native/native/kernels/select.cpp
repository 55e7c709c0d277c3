// Which tables this build has and this CPU can run.
#include <cstring>

#include "kernels.h"

namespace cflow {

extern const Kernels kKernelsAvx512Vnni, kKernelsAvx512, kKernelsAvxVnni, kKernelsAvx2, kKernelsSse41, kKernelsNeon,
    kKernelsScalar;

namespace {

// __builtin_cpu_supports also asks whether the operating system saves the wide registers.
#ifdef CFLOW_HAS_avx2
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

struct Table {
  const Kernels* list[8];
  int count = 0;

  Table() {
#ifdef CFLOW_HAS_avx2
    __builtin_cpu_init();
    const bool avx512_vnni = has_avx512() && __builtin_cpu_supports("avx512vnni");
    if (avx512_vnni) add(kKernelsAvx512Vnni);
    if (has_avx512()) add(kKernelsAvx512);
#ifdef CFLOW_VNNI_EVEX
    if (avx512_vnni) add(kKernelsAvxVnni);
#else
    if (has_avx2() && __builtin_cpu_supports("avxvnni")) add(kKernelsAvxVnni);
#endif
    if (has_avx2()) add(kKernelsAvx2);
    if (__builtin_cpu_supports("avx") && __builtin_cpu_supports("sse4.1")) add(kKernelsSse41);
#endif
#ifdef CFLOW_HAS_neon
    add(kKernelsNeon);
#endif
    add(kKernelsScalar);
  }

  void add(const Kernels& kernels) { list[count++] = &kernels; }
};

const Table& table() {
  static const Table only;
  return only;
}

}  // namespace

const Kernels* const* available_kernels(int* count) {
  *count = table().count;
  return table().list;
}

const Kernels* find_kernels(const char* name) {
  if (*name == 0) return table().list[0];
  for (int i = 0; i < table().count; ++i) {
    if (std::strcmp(table().list[i]->isa, name) == 0) return table().list[i];
  }
  return nullptr;
}

}  // namespace cflow
