#include <memory>
#include <random>

#include "path.hpp"
#include "small.hpp"

namespace counts {

namespace {

using namespace foreload;

constexpr size_t kImages = 64;
constexpr int kSide = 32;
constexpr size_t kBytes = 3 * kSide * kSide;

Path path(std::string name, const SmallTransform& transform) {
  return {std::move(name), kImages, [=] {
            struct Data {
              std::vector<uint8_t> pixels, out;
              SmallImages images;
            };
            const auto data = std::make_shared<Data>();
            std::mt19937 random(1);
            for (size_t i = 0; i < kImages * kBytes; ++i)
              data->pixels.push_back(static_cast<uint8_t>(random()));
            data->out.resize(transform.sample_bytes());
            return [=] {
              for (size_t i = 0; i < kImages; ++i) {
                const SmallImage image{&data->pixels[i * kBytes], 1, 3 * kSide, 3, kSide, kSide};
                Random numbers({1, 0}, i);
                data->images.show(image, transform, numbers, data->out.data());
              }
            };
          }};
}

}  // namespace

std::vector<Path> small_image_paths() {
  SmallTransform plain;
  plain.padding = 4;
  plain.flip = 0.5;
  plain.cutout = 8;
  SmallTransform normalised = plain;
  normalised.output.normalise = true;
  SmallTransform jittered = plain;
  jittered.jitter = {.brightness = 0.4F, .contrast = 0.4F, .saturation = 0.4F, .hue = 0.1F};
  return {path("small image, padded crop, flip, cutout, uint8", plain),
          path("small image, padded crop, flip, cutout, float32", normalised),
          path("small image, the same with colour jitter, uint8", jittered)};
}

}  // namespace counts
