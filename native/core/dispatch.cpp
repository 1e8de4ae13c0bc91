#include "rows.hpp"

namespace foreload {

extern const RowKernels row_kernels_baseline;

#if defined(__x86_64__)
extern const RowKernels row_kernels_avx2;
extern const RowKernels row_kernels_avx512;

const RowKernels& row_kernels() {
  static const RowKernels& best = []() -> const RowKernels& {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      return row_kernels_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return row_kernels_avx2;
    return row_kernels_baseline;
  }();
  return best;
}
#else
const RowKernels& row_kernels() {
  return row_kernels_baseline;
}
#endif

}  // namespace foreload
