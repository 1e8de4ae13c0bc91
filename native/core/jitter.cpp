#include "jitter.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace foreload {

namespace {

inline uint8_t to_byte(float value) {
  return static_cast<uint8_t>(std::clamp(value, 0.0F, 255.0F) + 0.5F);
}

// ITU-R 601-2 luma, as Pillow's "L" has it.
inline float grey(float red, float green, float blue) {
  return 0.299F * red + 0.587F * green + 0.114F * blue;
}

void blend_constant(uint8_t* values, size_t count, float factor, float other) {
  const float bias = (1 - factor) * other;
  for (size_t i = 0; i < count; ++i) values[i] = to_byte(factor * values[i] + bias);
}

void contrast(uint8_t* planes, size_t count, float factor) {
  float total = 0;
  double mean = 0;
  constexpr size_t kTile = 4096;  // float sums of a tile stay exact enough
  for (size_t start = 0; start < count; start += kTile) {
    total = 0;
    for (size_t i = start; i < std::min(count, start + kTile); ++i) {
      total += grey(planes[i], planes[count + i], planes[2 * count + i]);
    }
    mean += total;
  }
  blend_constant(planes, 3 * count, factor,
                 std::floor(static_cast<float>(mean / static_cast<double>(count)) + 0.5F));
}

void saturation(uint8_t* planes, size_t count, float factor) {
  uint8_t *red = planes, *green = planes + count, *blue = planes + 2 * count;
  for (size_t i = 0; i < count; ++i) {
    const float bias = (1 - factor) * grey(red[i], green[i], blue[i]);
    red[i] = to_byte(factor * red[i] + bias);
    green[i] = to_byte(factor * green[i] + bias);
    blue[i] = to_byte(factor * blue[i] + bias);
  }
}

// Through HSV; each colour is value - chroma * max(0, min(k, 4 - k, 1)) with k = (n + hue / 60) mod 6.
void hue(uint8_t* planes, size_t count, float turn) {
  uint8_t *reds = planes, *greens = planes + count, *blues = planes + 2 * count;
  for (size_t i = 0; i < count; ++i) {
    const float red = reds[i], green = greens[i], blue = blues[i];
    const float value = std::max(red, std::max(green, blue));
    const float chroma = value - std::min(red, std::min(green, blue));
    const float divisor = chroma > 0 ? chroma : 1.0F;
    float sixths = value == red     ? (green - blue) / divisor
                   : value == green ? (blue - red) / divisor + 2
                                    : (red - green) / divisor + 4;
    sixths += turn * 6 + 12;
    const auto color = [&](float offset) {
      float k = offset + sixths;
      k -= 6 * static_cast<float>(static_cast<int>(k * (1.0F / 6)));
      return to_byte(value - chroma * std::max(0.0F, std::min(std::min(k, 4 - k), 1.0F)));
    };
    reds[i] = color(5);
    greens[i] = color(3);
    blues[i] = color(1);
  }
}

}  // namespace

void apply_jitter(const Jitter& jitter, Random& random, uint8_t* planes, size_t count) {
  std::array<int, 4> steps{0, 1, 2, 3};
  for (uint32_t i = 3; i > 0; --i) std::swap(steps[i], steps[random.below(i + 1)]);
  const auto factor = [&](float width) {
    return static_cast<float>(random.uniform(std::max(0.0F, 1 - width), 1 + width));
  };
  const float brightness_factor = factor(jitter.brightness);
  const float contrast_factor = factor(jitter.contrast);
  const float saturation_factor = factor(jitter.saturation);
  const float turn = static_cast<float>(random.uniform(-jitter.hue, jitter.hue));
  for (const int step : steps) {
    if (step == 0 && jitter.brightness > 0) blend_constant(planes, 3 * count, brightness_factor, 0);
    if (step == 1 && jitter.contrast > 0) contrast(planes, count, contrast_factor);
    if (step == 2 && jitter.saturation > 0) saturation(planes, count, saturation_factor);
    if (step == 3 && jitter.hue > 0) hue(planes, count, turn);
  }
}

}  // namespace foreload
