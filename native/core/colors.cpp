// Compiled once per instruction set, like rows.cpp, and without other headers for the same reason.
#include "colors.hpp"

#define FORELOAD_NAME2(isa) color_kernels_##isa
#define FORELOAD_NAME(isa) FORELOAD_NAME2(isa)

namespace foreload {

namespace {

inline float larger(float a, float b) {
  return a > b ? a : b;
}
inline float smaller(float a, float b) {
  return a < b ? a : b;
}
inline uint8_t to_byte(float value) {
  return static_cast<uint8_t>(static_cast<int32_t>(smaller(larger(value, 0.0F), 255.0F) + 0.5F));
}
inline float grey(float red, float green, float blue) {
  return 0.299F * red + 0.587F * green + 0.114F * blue;
}

void scale(uint8_t* values, size_t count, float factor, float bias) {
  for (size_t i = 0; i < count; ++i) values[i] = to_byte(factor * static_cast<float>(values[i]) + bias);
}

double luma(const uint8_t* red, const uint8_t* green, const uint8_t* blue, size_t count) {
  // Integers: their sum does not depend on the order.
  uint64_t total = 0;
  for (size_t start = 0; start < count; start += 4096) {
    const size_t end = count - start < 4096 ? count : start + 4096;
    uint32_t sum = 0;
    for (size_t i = start; i < end; ++i) sum += 299U * red[i] + 587U * green[i] + 114U * blue[i];
    total += sum;
  }
  return static_cast<double>(total) / 1000.0;
}

void saturate(uint8_t* __restrict red, uint8_t* __restrict green, uint8_t* __restrict blue, size_t count,
              float factor) {
  for (size_t i = 0; i < count; ++i) {
    const float r = red[i], g = green[i], b = blue[i];
    const float bias = (1 - factor) * grey(r, g, b);
    red[i] = to_byte(factor * r + bias);
    green[i] = to_byte(factor * g + bias);
    blue[i] = to_byte(factor * b + bias);
  }
}

// A colour of hue h (in sixths), by the formula with k = (offset + h) mod 6.
inline uint8_t of_hue(float sixths, float offset, float value, float chroma) {
  float k = offset + sixths;
  k -= 6 * static_cast<float>(static_cast<int32_t>(k * (1.0F / 6)));
  return to_byte(value - chroma * larger(0.0F, smaller(smaller(k, 4 - k), 1.0F)));
}

void turn(uint8_t* __restrict red, uint8_t* __restrict green, uint8_t* __restrict blue, size_t count,
          float by) {
  for (size_t i = 0; i < count; ++i) {
    const float r = red[i], g = green[i], b = blue[i];
    const float value = larger(r, larger(g, b));
    const float chroma = value - smaller(r, smaller(g, b));
    const float unit = 1 / larger(chroma, 1.0F);
    const float from_red = (g - b) * unit, from_green = (b - r) * unit + 2, from_blue = (r - g) * unit + 4;
    const float sixths = (value == r ? from_red : value == g ? from_green : from_blue) + by * 6 + 12;
    red[i] = of_hue(sixths, 5, value, chroma);
    green[i] = of_hue(sixths, 3, value, chroma);
    blue[i] = of_hue(sixths, 1, value, chroma);
  }
}

void mix(const uint8_t* __restrict near, const uint8_t* __restrict far, size_t count,
         uint16_t* __restrict sums) {
  for (size_t i = 0; i < count; ++i) sums[i] = static_cast<uint16_t>(3 * near[i] + far[i]);
}

void spread(const uint16_t* __restrict sums, size_t count, uint8_t* __restrict out) {
  const uint16_t* const before = sums - 1;
  const uint16_t* const after = sums + 1;
  for (size_t i = 0; i < count; ++i) {
    const auto three = static_cast<uint16_t>(3 * sums[i]);
    out[2 * i] = static_cast<uint8_t>(static_cast<uint16_t>(three + before[i] + 8) >> 4);
    out[2 * i + 1] = static_cast<uint8_t>(static_cast<uint16_t>(three + after[i] + 7) >> 4);
  }
}

inline uint8_t clamp(int32_t value) {
  return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

void to_rgb(const uint8_t* __restrict luma, const uint8_t* __restrict blue, const uint8_t* __restrict red,
            size_t count, uint8_t* __restrict out) {
  constexpr int32_t kHalf = 1 << 15;
  for (size_t i = 0; i < count; ++i) {
    const int32_t y = luma[i], b = blue[i] - 128, r = red[i] - 128;
    out[3 * i] = clamp(y + ((91881 * r + kHalf) >> 16));
    out[3 * i + 1] = clamp(y + ((-22554 * b - 46802 * r + kHalf) >> 16));
    out[3 * i + 2] = clamp(y + ((116130 * b + kHalf) >> 16));
  }
}

}  // namespace

extern const ColorKernels FORELOAD_NAME(FORELOAD_ISA);
const ColorKernels FORELOAD_NAME(FORELOAD_ISA) = {scale, luma, saturate, turn, mix, spread, to_rgb};

}  // namespace foreload
