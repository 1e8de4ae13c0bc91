// The planes of a decoded image before its colours are upsampled: 4:2:0, half the bytes of RGB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg.hpp"

namespace foreload {

struct Planes {
  int width = 0, height = 0;
  const uint8_t *y = nullptr, *cb = nullptr, *cr = nullptr;  // rows without gaps

  int colour_width() const { return (width + 1) / 2; }
  int colour_height() const { return (height + 1) / 2; }
};

size_t planes_bytes(int width, int height);
// The planes in memory of that size, one after the other.
Planes planes_in(const uint8_t* memory, int width, int height);

// Converts a box of planes to RGB: the same pixels as libjpeg-turbo, which interpolates colours ("fancy
// upsampling", jdsample.c) and converts by fixed-point tables (jdcolor.c). Keeps buffers from call to call.
class PlanesToRgb {
 public:
  Pixels convert(const Planes& planes, const Box& box);
  // The same with each colour in a plane of its own, which is faster.
  Pixels convert_to_planes(const Planes& planes, const Box& box);

 private:
  // Writes to sums[1] ... sums[count] the columns of one colour from `first` on that belong to row y of the
  // pixels, each as a sum of two rows, and their neighbours before and after them.
  void mix(const Planes& planes, const uint8_t* colour, int y, int first, size_t count,
           std::vector<uint16_t>& sums);

  std::vector<uint16_t> blue_, red_;
  std::vector<uint8_t> pixels_, packed_;
};

}  // namespace foreload
