// The steps of colour jitter on planes of bytes; once per instruction set, as in rows.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreload {

struct ColorKernels {
  // value * factor + bias, for every value.
  void (*scale)(uint8_t* values, size_t count, float factor, float bias);
  // The sum of the luma (ITU-R 601-2, as Pillow's "L" has it) of `count` pixels.
  double (*luma)(const uint8_t* red, const uint8_t* green, const uint8_t* blue, size_t count);
  // Between the pixel and its luma: 0 is grey, 1 the pixel.
  void (*saturate)(uint8_t* red, uint8_t* green, uint8_t* blue, size_t count, float factor);
  // Turns the hue by `turn` of a full circle.
  void (*turn)(uint8_t* red, uint8_t* green, uint8_t* blue, size_t count, float turn);
};

const ColorKernels& color_kernels();

}  // namespace foreload
