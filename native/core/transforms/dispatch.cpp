#include "colors.hpp"
#include "rows.hpp"
#include "scans.hpp"

namespace foreload {

extern const RowKernels row_kernels_baseline;
extern const ColorKernels color_kernels_baseline;
extern const ScanKernels scan_kernels_baseline;
#if defined(__x86_64__)
extern const RowKernels row_kernels_avx2, row_kernels_avx512;
extern const ColorKernels color_kernels_avx2, color_kernels_avx512;
extern const ScanKernels scan_kernels_avx2, scan_kernels_avx512;
#endif

namespace {

// In step with the tables below: 0 baseline, 1 AVX2, 2 AVX-512.
size_t best_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  for (const bool has : {__builtin_cpu_supports("bmi") != 0, __builtin_cpu_supports("bmi2") != 0,
                         __builtin_cpu_supports("lzcnt") != 0, __builtin_cpu_supports("popcnt") != 0}) {
    if (!has) return 0;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return 2;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

#if defined(__x86_64__)
const RowKernels* const kRows[] = {&row_kernels_baseline, &row_kernels_avx2, &row_kernels_avx512};
const ColorKernels* const kColors[] = {&color_kernels_baseline, &color_kernels_avx2, &color_kernels_avx512};
const ScanKernels* const kScans[] = {&scan_kernels_baseline, &scan_kernels_avx2, &scan_kernels_avx512};
#else
const RowKernels* const kRows[] = {&row_kernels_baseline};
const ColorKernels* const kColors[] = {&color_kernels_baseline};
const ScanKernels* const kScans[] = {&scan_kernels_baseline};
#endif

}  // namespace

size_t available_row_kernels(const RowKernels** out) {
  const size_t count = best_level() + 1;
  for (size_t i = 0; i < count; ++i) out[i] = kRows[i];
  return count;
}

const RowKernels& row_kernels() {
  static const RowKernels& best = *kRows[best_level()];
  return best;
}

size_t available_color_kernels(const ColorKernels** out) {
  const size_t count = best_level() + 1;
  for (size_t i = 0; i < count; ++i) out[i] = kColors[i];
  return count;
}

const ColorKernels& color_kernels() {
  static const ColorKernels& best = *kColors[best_level()];
  return best;
}

size_t available_scan_kernels(const ScanKernels** out) {
  const size_t count = best_level() + 1;
  for (size_t i = 0; i < count; ++i) out[i] = kScans[i];
  return count;
}

const ScanKernels& scan_kernels() {
  static const ScanKernels& best = *kScans[best_level()];
  return best;
}

}  // namespace foreload
