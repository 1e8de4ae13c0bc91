// Row kernels, the operations of resizing: blend rows of bytes, transpose them, and normalise them. There is
// one set per instruction set; the best one that this processor can run is chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreload {

// A multiple of the number of colours.
constexpr size_t kPeriod = 768;

struct RowKernels {
  const char* isa;

  // out[i] = sum over k of weights[k] * rows[k * stride + i] / 65536, rounded; the weights sum to 65536,
  // one of 65536 being given as 65535.
  void (*blend)(const uint8_t* rows, size_t stride, const uint16_t* weights, int taps, size_t count,
                uint8_t* out);

  // out[c * out_stride + r] = in[r * stride + c] for r < rows, c < columns.
  void (*transpose)(const uint8_t* in, size_t stride, size_t rows, size_t columns, uint8_t* out,
                    size_t out_stride);

  // out[i] = in[i] * scale[i % kPeriod] + bias[i % kPeriod]. Much is written past the caches.
  void (*normalise)(const uint8_t* in, size_t count, const float* scale, const float* bias, float* out);
};

// Returns the best set that this processor can run.
const RowKernels& row_kernels();

// Writes all sets that it can run to `out`, which has room for 3, the best one last; returns how many.
size_t available_row_kernels(const RowKernels** out);

}  // namespace foreload
