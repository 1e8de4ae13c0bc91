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
inline float grey(float red, float green, float blue) {
  return 0.299F * red + 0.587F * green + 0.114F * blue;
}

// The nearest number of a byte.
inline float rounded(float value) {
  return static_cast<float>(static_cast<int32_t>(smaller(larger(value, 0.0F), 255.0F) + 0.5F));
}

// So many pixels are kept as floats through all steps, in the first-level cache.
constexpr size_t kChunk = 512;

struct Pixels {
  alignas(64) float red[kChunk];
  alignas(64) float green[kChunk];
  alignas(64) float blue[kChunk];
};

void load(const uint8_t* __restrict from, size_t count, float* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] = from[i];
}

void store(const float* __restrict from, size_t count, uint8_t* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(static_cast<int32_t>(from[i]));
}

void scale(float* values, size_t count, float factor, float bias) {
  for (size_t i = 0; i < count; ++i) values[i] = rounded(factor * values[i] + bias);
}

void saturate(Pixels& pixels, size_t count, float factor) {
  for (size_t i = 0; i < count; ++i) {
    const float r = pixels.red[i], g = pixels.green[i], b = pixels.blue[i];
    const float bias = (1 - factor) * grey(r, g, b);
    pixels.red[i] = rounded(factor * r + bias);
    pixels.green[i] = rounded(factor * g + bias);
    pixels.blue[i] = rounded(factor * b + bias);
  }
}

// A value less what its colour lacks of the largest one, at most the chroma.
inline float less(float value, float lacks, float chroma) {
  return rounded(value - smaller(larger(lacks, 0.0F), chroma));
}

inline float size(float value) {
  return larger(value, -value);
}

// By the usual formulas, with all that is divided by the chroma multiplied by it instead.
void turn(Pixels& pixels, size_t count, float by) {
  for (size_t i = 0; i < count; ++i) {
    const float r = pixels.red[i], g = pixels.green[i], b = pixels.blue[i];
    const float value = larger(r, larger(g, b));
    const float chroma = value - smaller(r, smaller(g, b));
    const float near_red = g - b, near_green = b - r + 2 * chroma, near_blue = r - g - 2 * chroma;
    // The hue in sixths of a circle from red, which is -6 to 6, and then -3 to 3.
    const float turned = (value == r ? near_red : value == g ? near_green : near_blue) + 6 * by * chroma;
    const float below = turned > 3 * chroma ? turned - 6 * chroma : turned;
    const float hue = below < -3 * chroma ? below + 6 * chroma : below;
    pixels.red[i] = less(value, size(hue) - chroma, chroma);
    pixels.green[i] = less(value, 2 * chroma - size(hue + chroma), chroma);
    pixels.blue[i] = less(value, 2 * chroma - size(hue - chroma), chroma);
  }
}

void change(uint8_t* red, uint8_t* green, uint8_t* blue, size_t count, const ColorStep* steps,
            size_t steps_count) {
  Pixels pixels;
  for (size_t start = 0; start < count; start += kChunk) {
    const size_t here = count - start < kChunk ? count - start : kChunk;
    uint8_t *const r = red + start, *const g = green + start, *const b = blue + start;
    load(r, here, pixels.red);
    load(g, here, pixels.green);
    load(b, here, pixels.blue);
    for (const ColorStep* step = steps; step != steps + steps_count; ++step) {
      switch (step->change) {
        case ColorChange::scale:
          scale(pixels.red, here, step->factor, step->bias);
          scale(pixels.green, here, step->factor, step->bias);
          scale(pixels.blue, here, step->factor, step->bias);
          break;
        case ColorChange::saturate:
          saturate(pixels, here, step->factor);
          break;
        case ColorChange::turn:
          turn(pixels, here, step->factor);
          break;
      }
    }
    store(pixels.red, here, r);
    store(pixels.green, here, g);
    store(pixels.blue, here, b);
  }
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
const ColorKernels FORELOAD_NAME(FORELOAD_ISA) = {change, luma, mix, spread, to_rgb};

}  // namespace foreload
