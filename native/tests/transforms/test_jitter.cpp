// Each step of jitter does to colours what it should, and nothing else.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "check.hpp"
#include "colors.hpp"
#include "jitter.hpp"
#include "jpegs.hpp"

using foreload::ColorChange;
using foreload::ColorKernels;
using foreload::ColorStep;
using foreload::Jitter;
using foreload::Random;

namespace {

using Color = std::array<double, 3>;

// A step by its definition, in real numbers.
Color changed(const ColorStep& step, const Color& from) {
  const double factor = step.factor;
  const double largest = std::max({from[0], from[1], from[2]});
  const double chroma = largest - std::min({from[0], from[1], from[2]});
  Color to{};
  if (step.change != ColorChange::turn) {
    const double grey = 0.299 * from[0] + 0.587 * from[1] + 0.114 * from[2];
    const double mean = step.change == ColorChange::saturate ? grey : step.mean;
    for (int i = 0; i < 3; ++i) to[i] = factor * from[i] + (1 - factor) * mean;
  } else {
    double hue = 0;  // in sixths of a circle
    if (chroma > 0) {
      hue = largest == from[0]   ? (from[1] - from[2]) / chroma
            : largest == from[1] ? 2 + (from[2] - from[0]) / chroma
                                 : 4 + (from[0] - from[1]) / chroma;
    }
    for (int i = 0; i < 3; ++i) {
      const double turned = std::fmod(hue + 6 * factor + std::array{5, 3, 1}[i] + 12, 6.0);
      to[i] = largest - chroma * std::max(0.0, std::min({turned, 4 - turned, 1.0}));
    }
  }
  for (double& value : to) value = std::floor(std::clamp(value, 0.0, 255.0) + 0.5);
  return to;
}

// Floats are those of the bytes.
void check_floats(const ColorKernels& kernels, const ColorStep& step, jpegs::Bytes from,
                  const jpegs::Bytes& bytes) {
  const size_t count = from.size() / 3;
  const float scale[3] = {0.017F, -0.5F, 1}, bias[3] = {-2.1F, 0, 0.3F};
  std::vector<float> out(from.size() + 1, 77);
  const foreload::ColorFloats floats{scale, bias, out.data()};
  kernels.change(from.data(), from.data() + count, from.data() + 2 * count, count, &step, 1, &floats);
  for (size_t i = 0; i < from.size(); ++i) {
    const volatile float product = static_cast<float>(bytes[i]) * scale[i / count];  // rounded before the sum
    CHECK(out[i] == product + bias[i / count]);
  }
  CHECK(out.back() == 77);
}

void steps_are_by_definition(const ColorKernels& kernels) {
  constexpr size_t kCount = 5003;  // no multiple of what is computed at a time
  auto planes = jpegs::pixels(static_cast<int>(kCount), 3, 1, 8);
  for (size_t i = 0; i < kCount; i += 7) planes[kCount + i] = planes[2 * kCount + i] = planes[i];  // greys
  for (size_t i = 0; i < 3 * kCount; i += 11) planes[i] = i % 2 ? 0 : 255;
  for (const auto change : {ColorChange::scale, ColorChange::saturate, ColorChange::turn}) {
    for (const float at : {0.0F, 0.01F, 0.3F, 0.5F, 0.999F, 1.0F, 1.3F, 1.999F, 2.0F, 5.5F, 8.0F}) {
      for (const uint8_t mean : {0, 93, 255}) {
        const ColorStep step{change, change == ColorChange::turn ? std::fmod(at, 1.0F) - 0.5F : at, mean};
        auto out = planes;
        kernels.change(out.data(), out.data() + kCount, out.data() + 2 * kCount, kCount, &step, 1, nullptr);
        check_floats(kernels, step, planes, out);
        for (size_t i = 0; i < kCount; ++i) {
          const auto of = [&](const jpegs::Bytes& image) {
            return Color{double(image[i]), double(image[kCount + i]), double(image[2 * kCount + i])};
          };
          const Color wanted = changed(step, of(planes)), got = of(out);
          for (int color = 0; color < 3; ++color) CHECK(std::abs(got[color] - wanted[color]) <= 1);
        }
      }
    }
  }
}

void luma_is_the_sum(const ColorKernels& kernels) {
  for (const size_t count : {size_t{1}, size_t{63}, size_t{64}, size_t{20000}}) {
    const auto planes = jpegs::pixels(static_cast<int>(count), 3, 1, 9);
    double sum = 0;
    for (size_t i = 0; i < count; ++i) {
      sum += 0.299 * planes[i] + 0.587 * planes[count + i] + 0.114 * planes[2 * count + i];
    }
    const double luma = kernels.luma(planes.data(), planes.data() + count, planes.data() + 2 * count, count);
    CHECK(std::abs(luma - sum) < 1e-6 * sum + 1e-6);
  }
  // Sums of the largest bytes do not run over.
  const jpegs::Bytes white(3 * 100000, 255);
  CHECK(kernels.luma(white.data(), white.data(), white.data(), 100000) == 25500000);
}

uint8_t byte(double value) {
  return static_cast<uint8_t>(std::clamp(std::floor(value + 0.5), 0.0, 255.0));
}

// Pixels are those of libjpeg's tables: see jdcolor.c.
void check_pixel(const uint8_t* out, size_t plane, int luma, int blue, int red) {
  CHECK(out[0] == byte(luma + std::floor((91881.0 * (red - 128) + 32768) / 65536)));
  CHECK(out[plane] ==
        byte(luma + std::floor((-22554.0 * (blue - 128) - 46802.0 * (red - 128) + 32768) / 65536)));
  CHECK(out[2 * plane] == byte(luma + std::floor((116130.0 * (blue - 128) + 32768) / 65536)));
}

// Every pair of colours, with several lumas, in rows of all lengths.
void planes_are_the_rgb(const ColorKernels& kernels) {
  constexpr size_t kMost = 65536 + 777;
  jpegs::Bytes luma(2 * kMost), planes(3 * (2 * kMost + 1));
  // Four times a byte is the sum of mix() of a colour that is the same around it: here, of three columns
  // each.
  std::vector<uint16_t> blue(3 * kMost), red(3 * kMost);
  const size_t plane = luma.size() + 1;
  for (size_t i = 0; i < luma.size(); ++i) luma[i] = static_cast<uint8_t>(i * 7 + i / 256 * 31);
  for (size_t i = 0; i < kMost; ++i) {
    for (size_t k = 0; k < 3; ++k) {
      blue[3 * i + k] = static_cast<uint16_t>(4 * (i % 256));
      red[3 * i + k] = static_cast<uint16_t>(4 * (i / 256 % 256));
    }
  }
  for (size_t i = 0; i < kMost; ++i) {
    uint8_t row[6];
    kernels.to_planes(&luma[2 * i], &blue[3 * i + 1], &red[3 * i + 1], 1, row, 2);
    for (size_t k = 0; k < 2; ++k) {
      check_pixel(row + k, 2, luma[2 * i + k], static_cast<int>(i % 256), static_cast<int>(i / 256 % 256));
    }
  }
  std::mt19937 random(3);
  for (uint16_t& value : blue) value = static_cast<uint16_t>(random() % 1021);
  for (uint16_t& value : red) value = static_cast<uint16_t>(random() % 1021);
  const auto column = [](const std::vector<uint16_t>& sums, size_t i, size_t k) {
    return k == 0 ? (3 * sums[i] + sums[i - 1] + 8) >> 4 : (3 * sums[i] + sums[i + 1] + 7) >> 4;
  };
  const auto check = [&](size_t from, size_t count) {
    std::fill(planes.begin(), planes.end(), uint8_t{77});
    kernels.to_planes(&luma[2 * from], &blue[from], &red[from], count, planes.data(), plane);
    for (size_t i = 0; i < 2 * count; ++i) {
      const size_t at = from + i / 2;
      check_pixel(&planes[i], plane, luma[2 * from + i], column(blue, at, i % 2), column(red, at, i % 2));
    }
    for (size_t color = 0; color < 3; ++color) CHECK(planes[color * plane + 2 * count] == 77);
    jpegs::Bytes packed(6 * count + 1, 78);
    kernels.pack(planes.data(), plane, 2 * count, packed.data());
    for (size_t i = 0; i < 6 * count; ++i) CHECK(packed[i] == planes[i % 3 * plane + i / 3]);
    CHECK(packed[6 * count] == 78);
  };
  check(1, 65536);
  for (size_t count = 1; count < 200; ++count) check(count * 3, count);
}

// What comes as floats is what comes as bytes, normalised; of large images too, wherever they lie in memory.
void floats_are_the_bytes() {
  foreload::OutputFormat format;
  for (size_t i = 0; i < 3; ++i) {
    format.scale[i] = 0.25F + static_cast<float>(i);
    format.bias[i] = -static_cast<float>(i) / 8;
  }
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{32768}, size_t{50003}}) {
    for (const Jitter& jitter : {Jitter{}, Jitter{0.4F, 0.4F, 0.4F, 0.1F}, Jitter{0, 0.4F, 0, 0}}) {
      const auto planes = jpegs::pixels(static_cast<int>(count), 3, 1, 8);
      auto bytes = planes, other = planes;
      Random random({1, 0}, count), same({1, 0}, count);
      foreload::apply_jitter(jitter, random, bytes.data(), count);
      std::vector<float> floats(3 * count + 2, 77);
      foreload::apply_jitter(jitter, same, other.data(), count, format, floats.data() + 1);
      for (size_t i = 0; i < 3 * count; ++i) {
        const size_t color = i / count;
        CHECK(floats[i + 1] == static_cast<float>(bytes[i]) * format.scale[color] + format.bias[color]);
      }
      CHECK(floats.front() == 77 && floats.back() == 77);
    }
  }
}

}  // namespace

int main() {
  const ColorKernels* available[3];
  const size_t variants = foreload::available_color_kernels(available);
  CHECK(&foreload::color_kernels() == available[variants - 1]);
  for (size_t i = 0; i < variants; ++i) {
    steps_are_by_definition(*available[i]);
    luma_is_the_sum(*available[i]);
    planes_are_the_rgb(*available[i]);
  }
  floats_are_the_bytes();
  const size_t count = 1000;
  const auto planes = jpegs::pixels(static_cast<int>(count), 3, 1, 8);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto jittered = [&](Jitter jitter) {
      auto out = planes;
      Random random({seed, 0}, 0);
      foreload::apply_jitter(jitter, random, out.data(), count);
      return out;
    };
    CHECK(jittered({}) == planes);
    CHECK(jittered({0.4F, 0.4F, 0.4F, 0.1F}) == jittered({0.4F, 0.4F, 0.4F, 0.1F}));
    // Brightness scales; the factor is the same everywhere.
    const auto bright = jittered({0.4F, 0, 0, 0});
    const double factor = static_cast<double>(bright[10]) / planes[10];
    CHECK(factor > 0.55 && factor < 1.45);
    for (size_t i = 0; i < planes.size(); ++i) {
      if (bright[i] < 255)
        CHECK(std::abs(bright[i] - factor * planes[i]) < 0.51 + 0.6 * planes[i] / planes[10]);
    }
    // A turn of the hue leaves the largest and smallest of the three colours as large as they were.
    const auto turned = jittered({0, 0, 0, 0.5F});
    for (size_t i = 0; i < count; ++i) {
      const auto range = [&](const jpegs::Bytes& image) {
        const int r = image[i], g = image[count + i], b = image[2 * count + i];
        return std::pair(std::min(r, std::min(g, b)), std::max(r, std::max(g, b)));
      };
      CHECK(std::abs(range(turned).first - range(planes).first) <= 1);
      CHECK(std::abs(range(turned).second - range(planes).second) <= 1);
    }
  }
}
