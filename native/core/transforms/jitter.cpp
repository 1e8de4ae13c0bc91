#include "jitter.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "colors.hpp"

namespace foreload {

namespace {

// Steps that are taken together, in one pass over the pixels.
struct Steps {
  std::array<ColorStep, 4> steps;
  size_t count = 0;

  void add(const ColorStep& step) { steps[count++] = step; }
  void take(uint8_t* planes, size_t pixels, const ColorFloats* floats) const {
    color_kernels().change(planes, planes + pixels, planes + 2 * pixels, pixels, steps.data(), count, floats);
  }
};

// Draws the steps, and takes those that come before the contrast: the mean that it keeps is that of their
// result. Returns the others.
Steps begin_jitter(const Jitter& jitter, Random& random, uint8_t* planes, size_t count) {
  std::array<int, 4> order{0, 1, 2, 3};
  for (uint32_t i = 3; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  const auto factor = [&](float width) {
    return static_cast<float>(random.uniform(std::max(0.0F, 1 - width), 1 + width));
  };
  const float brightness = factor(jitter.brightness);
  const float contrast = factor(jitter.contrast);
  const float saturation = factor(jitter.saturation);
  const float turn = static_cast<float>(random.uniform(-jitter.hue, jitter.hue));
  Steps waiting;
  for (const int step : order) {
    if (step == 0 && jitter.brightness > 0) waiting.add({ColorChange::scale, brightness, 0});
    if (step == 1 && jitter.contrast > 0) {
      if (waiting.count > 0) waiting.take(planes, count, nullptr);
      waiting.count = 0;
      const double luma = color_kernels().luma(planes, planes + count, planes + 2 * count, count);
      const double mean = std::floor(luma / static_cast<double>(count) + 0.5);
      waiting.add({ColorChange::scale, contrast, static_cast<uint8_t>(mean)});
    }
    if (step == 2 && jitter.saturation > 0) waiting.add({ColorChange::saturate, saturation, 0});
    if (step == 3 && jitter.hue > 0) waiting.add({ColorChange::turn, turn, 0});
  }
  return waiting;
}

}  // namespace

void apply_jitter(const Jitter& jitter, Random& random, uint8_t* planes, size_t count) {
  const Steps last = begin_jitter(jitter, random, planes, count);
  if (last.count > 0) last.take(planes, count, nullptr);
}

void apply_jitter(const Jitter& jitter, Random& random, uint8_t* planes, size_t count,
                  const OutputFormat& format, float* out) {
  const ColorFloats floats{format.scale, format.bias, out};
  begin_jitter(jitter, random, planes, count).take(planes, count, &floats);
}

}  // namespace foreload
