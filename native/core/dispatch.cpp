#include "rows.hpp"

namespace foreload {

extern const RowKernels row_kernels_baseline;
#if defined(__x86_64__)
extern const RowKernels row_kernels_avx2;
extern const RowKernels row_kernels_avx512;
#endif

size_t available_row_kernels(const RowKernels** out) {
  size_t count = 0;
  out[count++] = &row_kernels_baseline;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out[count++] = &row_kernels_avx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    out[count++] = &row_kernels_avx512;
  }
#endif
  return count;
}

const RowKernels& row_kernels() {
  static const RowKernels& best = []() -> const RowKernels& {
    const RowKernels* available[3];
    return *available[available_row_kernels(available) - 1];
  }();
  return best;
}

}  // namespace foreload
