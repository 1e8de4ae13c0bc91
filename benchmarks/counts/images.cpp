#include <memory>

#include "error.hpp"
#include "image.hpp"
#include "jpegs.hpp"
#include "path.hpp"
#include "tile.hpp"

namespace counts {

namespace {

using namespace foreload;

constexpr size_t kPhotos = 4, kCrops = 8;
// Synthetic photos of 500 x 375 pixels take about as many bytes as real ones at this quality.
constexpr int kQuality = 90;

DecodedImage refuse(const std::string& path, std::span<const uint8_t>) {
  throw Error(ErrorKind::decode, "native code does not decode this any more", path);
}

// JPEGs in memory, loaded as a batch's are.
class Photos {
 public:
  Photos(const jpegs::Kind& kind, int width, int height, const Transform& transform, bool tiled = false)
      : files_(std::vector<std::string>(kPhotos, "photo"), 0),
        transform_(transform),
        out_(transform.sample_bytes()) {
    for (size_t i = 0; i < kPhotos; ++i) {
      encoded_.push_back(jpegs::encode(width, height, kind, static_cast<unsigned>(i + 1)));
      if (tiled) encoded_.back() = tile_jpeg(encoded_.back(), 0);
    }
  }

  // Keeps the images in this form from here on.
  void cache(Form form) {
    store_ = SampleStore::create(kPhotos, size_t{16} << 20, 0, 0);
    store_->follow(Rule::all);
    forms_.assign(kPhotos, static_cast<uint8_t>(form));
  }

  void load_all() {
    for (size_t crop = 0; crop < kCrops; ++crop) {
      const size_t index = crop % kPhotos;
      const Key key{1, static_cast<uint32_t>(crop / kPhotos)};
      loader_.set_input(encoded_[index]);
      if (store_) {
        const ImageCache cache{store_.get(), forms_.data(), &costs_};
        loader_.load(cache, files_, index, transform_, key, refuse, out_.data());
      } else {
        loader_.load(files_, index, transform_, key, refuse, out_.data());
      }
    }
  }

 private:
  std::vector<jpegs::Bytes> encoded_;
  Files files_;
  Transform transform_;
  std::vector<uint8_t> out_;
  ImageLoader loader_;
  std::shared_ptr<SampleStore> store_;
  std::vector<uint8_t> forms_;
  ImageCosts costs_{kPhotos};
};

Transform train() {
  Transform transform;
  transform.crop = Crop::random;
  transform.flip = 0.5;
  return transform;
}

Transform validation() {
  Transform transform;
  transform.crop = Crop::center;
  return transform;
}

Transform normalised(Transform transform) {
  transform.output.normalise = true;
  for (float& scale : transform.output.scale) scale = 1 / (0.225F * 255);
  for (float& bias : transform.output.bias) bias = -0.45F / 0.225F;
  return transform;
}

Transform changed(Transform transform, void (*change)(Transform&)) {
  change(transform);
  return transform;
}

Path path(std::string name, const jpegs::Kind& kind, const Transform& transform, int width = 500,
          int height = 375) {
  return {std::move(name), kCrops, [=] {
            const auto photos = std::make_shared<Photos>(kind, width, height, transform);
            return [photos] { photos->load_all(); };
          }};
}

Path cached(std::string name, Form form, const Transform& transform) {
  return {std::move(name), kCrops, [=] {
            const auto photos =
                std::make_shared<Photos>(jpegs::Kind{.quality = kQuality}, 500, 375, transform);
            photos->cache(form);
            return [photos] { photos->load_all(); };
          }};
}

Pass tile_all() {
  const auto jpeg = std::make_shared<jpegs::Bytes>(jpegs::encode(500, 375, {.quality = kQuality}));
  return [jpeg] { tile_jpeg(*jpeg, 0); };
}

}  // namespace

std::vector<Path> image_paths() {
  const jpegs::Kind usual{.quality = kQuality};
  const jpegs::Kind full_colour{.horizontal = 1, .vertical = 1, .quality = kQuality};
  const jpegs::Kind progressive{.progressive = true, .quality = kQuality};
  const Transform jittered = changed(train(), [](Transform& transform) {
    transform.jitter = {.brightness = 0.4F, .contrast = 0.4F, .saturation = 0.4F, .hue = 0.1F};
  });
  const Transform fast = changed(train(), [](Transform& transform) { transform.fast = true; });
  const Transform small =
      changed(train(), [](Transform& transform) { transform.height = transform.width = 64; });
  return {
      path("JPEG 4:2:0, random crop, uint8", usual, train()),
      path("JPEG 4:2:0, random crop, float32", usual, normalised(train())),
      path("JPEG 4:4:4, random crop, uint8", full_colour, train()),
      path("JPEG 4:4:4, random crop, float32", full_colour, normalised(train())),
      path("JPEG progressive, random crop, uint8", progressive, train()),
      path("JPEG in grey, random crop, uint8", {.grey = true, .quality = kQuality}, train()),
      path("JPEG with restart markers, random crop, uint8", {.restart = 32, .quality = kQuality}, train()),
      path("JPEG on its side, random crop, uint8", {.orientation = 6, .quality = kQuality}, train()),
      path("JPEG 1200x900, random crop, uint8", usual, train(), 1200, 900),
      path("JPEG 1200x900, random crop, fast, uint8", usual, fast, 1200, 900),
      path("JPEG 96x96, random crop, uint8", usual, small, 96, 96),
      path("JPEG 4:2:0, validation, uint8", usual, validation()),
      path("JPEG 4:2:0, validation, float32", usual, normalised(validation())),
      path("JPEG 4:2:0, random crop, colour jitter, uint8", usual, jittered),
      {"JPEG tiled, random crop, uint8", kCrops,
       [=] {
         const auto photos = std::make_shared<Photos>(usual, 500, 375, train(), true);
         return [photos] { photos->load_all(); };
       }},
      {"JPEG transcoded to tiles", 1, tile_all},
      cached("image cached as planes, random crop, uint8", Form::planes, train()),
      cached("image cached as planes, random crop, colour jitter, float32", Form::planes,
             normalised(jittered)),
      cached("image cached as RGB, random crop, uint8", Form::rgb, train()),
      cached("image cached as validation view, float32", Form::view, normalised(validation()))};
}

}  // namespace counts
