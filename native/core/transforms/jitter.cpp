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
  uint8_t *const red = planes, *const green = planes + count, *const blue = planes + 2 * count;
  std::array<ColorStep, 4> waiting;  // to be taken together
  size_t length = 0;
  const auto take = [&] {
    if (length > 0) colors.change(red, green, blue, count, waiting.data(), length);
    length = 0;
  };
  for (const int step : steps) {
    if (step == 0 && jitter.brightness > 0) waiting[length++] = {ColorChange::scale, brightness, 0};
    if (step == 1 && jitter.contrast > 0) {
      take();
      const double mean = std::floor(colors.luma(red, green, blue, count) / static_cast<double>(count) + 0.5);
      waiting[length++] = {ColorChange::scale, contrast, static_cast<uint8_t>(mean)};
    }
    if (step == 2 && jitter.saturation > 0) waiting[length++] = {ColorChange::saturate, saturation, 0};
    if (step == 3 && jitter.hue > 0) waiting[length++] = {ColorChange::turn, turn, 0};
  }
  take();
}

}  // namespace foreload
