// Colour kernels: the steps of jitter on planes of bytes, and the conversion to RGB. There is one set per
// instruction set, as in rows.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreload {

// A step of jitter.
enum class ColorChange : uint8_t {
  scale,     // moves every value `factor` times as far from the mean
  saturate,  // blends each pixel with its luma: a factor of 0 is grey, 1 the pixel
  turn,      // turns the hue by `factor` of a full circle, -0.5 to 0.5
};

struct ColorStep {
  ColorChange change;
  float factor;
  uint8_t mean;
};

// Where value * scale[c] + bias[c] of colour c goes: three planes, one after the other.
struct ColorFloats {
  const float *scale, *bias;
  float* out;
};

struct ColorKernels {
  // Takes `steps` on `count` pixels; values are bytes after each, at most 1 from
  // what real numbers give (2 for factors above 8; those above 63 count as 63).
  // Writes to the same bytes, or to `floats` if there are some.
  void (*change)(uint8_t* red, uint8_t* green, uint8_t* blue, size_t count, const ColorStep* steps,
                 size_t steps_count, const ColorFloats* floats);
  // Returns the sum of the luma (ITU-R 601-2, as in Pillow's "L") of `count` pixels.
  double (*luma)(const uint8_t* red, const uint8_t* green, const uint8_t* blue, size_t count);
  // 3 near + far, for the colour rows that are nearer to and farther from a row of pixels.
  void (*mix)(const uint8_t* near, const uint8_t* far, size_t count, uint16_t* sums);
  // Converts 2 * count pixels to RGB (ITU-R BT.601 full range, JFIF). A colour of every second pixel is
  // given, as a sum of mix(); its neighbours, sums[-1] to sums[count], are read. Each colour of the result
  // gets a row: the first begins at `out`, the others `plane` bytes after the one before.
  void (*to_planes)(const uint8_t* luma, const uint16_t* blue, const uint16_t* red, size_t count,
                    uint8_t* out, size_t plane);
  // Puts the three colours of `count` pixels, which lie `plane` bytes apart, side by side.
  void (*pack)(const uint8_t* planes, size_t plane, size_t count, uint8_t* out);
};

const ColorKernels& color_kernels();

// Writes all sets that this processor can run to `out`, which has room for 3; returns how many.
size_t available_color_kernels(const ColorKernels** out);

}  // namespace foreload
