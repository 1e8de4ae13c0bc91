// Each step of jitter does to colours what it should, and nothing else.
#include <algorithm>
#include <array>
#include <cmath>

#include "check.hpp"
#include "colors.hpp"
#include "jitter.hpp"
#include "jpegs.hpp"

using foreload::ColorChange;
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

void steps_are_by_definition() {
  constexpr size_t kCount = 5003;  // no multiple of what is computed at a time
  auto planes = jpegs::pixels(static_cast<int>(kCount), 3, 1, 8);
  for (size_t i = 0; i < kCount; i += 7) planes[kCount + i] = planes[2 * kCount + i] = planes[i];  // greys
  for (size_t i = 0; i < 3 * kCount; i += 11) planes[i] = i % 2 ? 0 : 255;
  for (const auto change : {ColorChange::scale, ColorChange::saturate, ColorChange::turn}) {
    for (const float at : {0.0F, 0.01F, 0.3F, 0.5F, 0.999F, 1.0F, 1.3F, 1.999F, 2.0F, 5.5F, 8.0F}) {
      for (const uint8_t mean : {0, 93, 255}) {
        const ColorStep step{change, change == ColorChange::turn ? std::fmod(at, 1.0F) - 0.5F : at, mean};
        auto out = planes;
        foreload::color_kernels().change(out.data(), out.data() + kCount, out.data() + 2 * kCount, kCount,
                                         &step, 1);
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

void luma_is_the_sum() {
  for (const size_t count : {size_t{1}, size_t{63}, size_t{64}, size_t{20000}}) {
    const auto planes = jpegs::pixels(static_cast<int>(count), 3, 1, 9);
    double sum = 0;
    for (size_t i = 0; i < count; ++i) {
      sum += 0.299 * planes[i] + 0.587 * planes[count + i] + 0.114 * planes[2 * count + i];
    }
    const double luma = foreload::color_kernels().luma(planes.data(), planes.data() + count,
                                                       planes.data() + 2 * count, count);
    CHECK(std::abs(luma - sum) < 1e-6 * sum + 1e-6);
  }
  // Sums of the largest bytes do not run over.
  const jpegs::Bytes white(3 * 100000, 255);
  CHECK(foreload::color_kernels().luma(white.data(), white.data(), white.data(), 100000) == 25500000);
}

}  // namespace

int main() {
  steps_are_by_definition();
  luma_is_the_sum();
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
