// Each step of jitter does to colours what it should, and nothing else.
#include <cmath>

#include "check.hpp"
#include "jitter.hpp"
#include "jpegs.hpp"

using foreload::Jitter;
using foreload::Random;

int main() {
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
