#include "jitter.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "colors.hpp"

namespace foreload {

void apply_jitter(const Jitter& jitter, Random& random, uint8_t* planes, size_t count) {
  std::array<int, 4> steps{0, 1, 2, 3};
  for (uint32_t i = 3; i > 0; --i) std::swap(steps[i], steps[random.below(i + 1)]);
  const auto factor = [&](float width) {
    return static_cast<float>(random.uniform(std::max(0.0F, 1 - width), 1 + width));
  };
  const float brightness = factor(jitter.brightness);
  const float contrast = factor(jitter.contrast);
  const float saturation = factor(jitter.saturation);
  const float turn = static_cast<float>(random.uniform(-jitter.hue, jitter.hue));
  const ColorKernels& colors = color_kernels();
  uint8_t *red = planes, *green = planes + count, *blue = planes + 2 * count;
  for (const int step : steps) {
    if (step == 0 && jitter.brightness > 0) colors.scale(planes, 3 * count, brightness, 0);
    if (step == 1 && jitter.contrast > 0) {
      const double mean = std::floor(colors.luma(red, green, blue, count) / static_cast<double>(count) + 0.5);
      colors.scale(planes, 3 * count, contrast, (1 - contrast) * static_cast<float>(mean));
    }
    if (step == 2 && jitter.saturation > 0) colors.saturate(red, green, blue, count, saturation);
    if (step == 3 && jitter.hue > 0) colors.turn(red, green, blue, count, turn);
  }
}

}  // namespace foreload
