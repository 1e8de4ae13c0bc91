// Colour jitter on an image in planes, as torchvision's ColorJitter defines it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "random.hpp"
#include "resize.hpp"

namespace foreload {

// Half-widths of ranges: factors are drawn from [1 - x, 1 + x], the turn of the hue from [-hue, hue] of a
// full circle.
struct Jitter {
  float brightness = 0, contrast = 0, saturation = 0, hue = 0;

  bool any() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

// Draws the factors and the order of the four steps from `random` and applies them in place to three planes
// of `count` bytes each, one after the other in memory.
void apply_jitter(const Jitter& jitter, Random& random, uint8_t* planes, size_t count);

// The same, normalised to three planes of floats; what is left in `planes` is of no use.
void apply_jitter(const Jitter& jitter, Random& random, uint8_t* planes, size_t count,
                  const OutputFormat& format, float* out);

}  // namespace foreload
