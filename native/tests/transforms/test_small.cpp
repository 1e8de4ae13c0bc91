// A small image's crop has the pixels of the padded image, wherever it is and however the image lies in
// memory.
#include <cmath>
#include <random>

#include "check.hpp"
#include "small.hpp"

using namespace foreload;

namespace {

std::mt19937 random_bits(7);

int below(int count) {
  return static_cast<int>(random_bits() % static_cast<unsigned>(count));
}

SmallTransform any_transform(int height, int width) {
  SmallTransform transform;
  do {
    transform.height = 1 + below(24);
    transform.width = 1 + below(24);
    transform.padding = below(std::min(transform.height, transform.width));
  } while (!transform.fits(height, width));
  transform.random = below(4) != 0;
  transform.flip = below(3) / 2.0;
  transform.cutout = below(2) ? 0 : below(2 * std::max(transform.height, transform.width) + 1);
  for (uint8_t& color : transform.cover) color = static_cast<uint8_t>(below(256));
  transform.output.channels_last = below(2) != 0;
  transform.output.normalise = below(2) != 0;
  for (size_t color = 0; color < 3; ++color) {
    transform.output.scale[color] = 0.25F * static_cast<float>(1 + below(8));
    transform.output.bias[color] = static_cast<float>(below(9) - 4);
  }
  return transform;
}

void check(SmallImages& images) {
  const int height = 1 + below(20), width = 1 + below(20);
  const SmallTransform transform = any_transform(height, width);
  std::vector<uint8_t> bytes(static_cast<size_t>(3 * height * width));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_bits());
  SmallImage image{bytes.data(), 1, 3 * width, 3, height, width};
  if (below(2)) image = {bytes.data(), height * width, width, 1, height, width};
  // Exactly as large as needed, so that a write past the end is seen.
  std::vector<uint8_t> out(transform.sample_bytes());
  Random random({1, 0}, random_bits()), same = random;
  images.show(image, transform, random, out.data());

  int top = static_cast<int>(std::nearbyint((height + 2 * transform.padding - transform.height) / 2.0));
  int left = static_cast<int>(std::nearbyint((width + 2 * transform.padding - transform.width) / 2.0));
  if (transform.random) {
    top = static_cast<int>(
        same.below(static_cast<uint32_t>(height + 2 * transform.padding - transform.height + 1)));
    left = static_cast<int>(
        same.below(static_cast<uint32_t>(width + 2 * transform.padding - transform.width + 1)));
  }
  const bool mirrored = transform.flip > 0 && same.uniform() < transform.flip;
  const int side = transform.cutout;
  const int cut_y =
      side > 0 ? static_cast<int>(same.below(static_cast<uint32_t>(transform.height))) - side / 2 : 0;
  const int cut_x =
      side > 0 ? static_cast<int>(same.below(static_cast<uint32_t>(transform.width))) - side / 2 : 0;
  for (int color = 0; color < 3; ++color) {
    for (int y = 0; y < transform.height; ++y) {
      for (int x = 0; x < transform.width; ++x) {
        const int from_y = top + y - transform.padding;
        const int from_x = left + (mirrored ? transform.width - 1 - x : x) - transform.padding;
        const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
        const bool cut = y >= cut_y && y < cut_y + side && x >= cut_x && x < cut_x + side;
        const uint8_t value =
            cut      ? transform.cover[color]
            : inside ? image.pixels[color * image.color + from_y * image.row + from_x * image.column]
                     : 0;
        const int at = transform.output.channels_last ? (y * transform.width + x) * 3 + color
                                                      : (color * transform.height + y) * transform.width + x;
        if (transform.output.normalise) {
          const float expected =
              static_cast<float>(value) * transform.output.scale[color] + transform.output.bias[color];
          CHECK(reinterpret_cast<const float*>(out.data())[at] == expected);
        } else {
          CHECK(out[static_cast<size_t>(at)] == value);
        }
      }
    }
  }
}

}  // namespace

int main() {
  SmallImages images;  // for all, as in a worker: nothing of an image may stay for the next
  for (int i = 0; i < 20000; ++i) check(images);
}
