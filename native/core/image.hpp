// One image's way from a file to its place in the batch: read, decode what is needed, resize, jitter, store.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "files.hpp"
#include "jpeg.hpp"
#include "planes.hpp"
#include "random.hpp"
#include "resize.hpp"
#include "spans.hpp"
#include "store.hpp"
#include "view.hpp"

namespace foreload {

// A whole decoded, upright image, and what keeps it alive.
struct DecodedImage {
  const uint8_t* pixels = nullptr;
  int width = 0, height = 0;
  std::shared_ptr<const void> owner;
};

// Decodes what the native decoder does not (PNG, WebP, CMYK, ...). It is given the file's bytes.
using Fallback = std::function<DecodedImage(const std::string& path, std::span<const uint8_t> bytes)>;

// More pixels than this is a mistake or an attack (Pillow's limit for an error).
constexpr int64_t kMaxPixels = 178956970;

// What loading each image took, and what keeping it would take. Written by any thread.
struct ImageCosts {
  explicit ImageCosts(size_t images)
      : read(images), decode(images), encoded(images), pixels(images), has_planes(images) {}
  std::vector<std::atomic<float>> read, decode;        // seconds, 0 where unknown
  std::vector<std::atomic<uint32_t>> encoded, pixels;  // bytes of the file, pixels of the image
  std::vector<std::atomic<uint8_t>> has_planes;        // whether it can be kept as Form::planes

  // These have been read together, in so many seconds.
  void read_together(std::span<const size_t> images, double seconds) {
    const auto each = static_cast<float>(seconds / static_cast<double>(images.size()));
    for (const size_t image : images) read[image].store(each, std::memory_order_relaxed);
  }
};

// Where decoded or encoded images are kept, and as what.
struct ImageCache {
  SampleStore* store = nullptr;
  // A Form per image, for those that the store's plan keeps; what has no planes is kept as RGB instead.
  const uint8_t* forms = nullptr;
  ImageCosts* costs = nullptr;
};

// Throws Error(decode) where an image has more than that.
void check_size(int width, int height);

// One per thread; buffers are kept from image to image.
class ImageLoader {
 public:
  // Writes image `index` as `transform` shows it, with the randomness named by (key, index), to `out`.
  // Throws Error, or what `fallback` throws.
  void load(Files& files, size_t index, const Transform& transform, Key key, const Fallback& fallback,
            void* out);

  // The same through a cache.
  void load(const ImageCache& cache, Files& files, size_t index, const Transform& transform, Key key,
            const Fallback& fallback, void* out);

  // What the next load() reads, if it has been read already; valid until then.
  void give(std::span<const uint8_t> bytes) { given_ = bytes; }

  // The same for an upright image that is decoded already.
  void show(const DecodedImage& image, size_t index, const Transform& transform, Key key, void* out);

  // Decodes the whole upright image into RGB rows without gaps; valid until the next call.
  DecodedImage decode(const std::string& path, std::span<const uint8_t> bytes, const Fallback& fallback);

 private:
  struct Picture;
  // `bytes` from wherever they come.
  void show_encoded(const std::string& path, std::span<const uint8_t> bytes, size_t index,
                    const Transform& transform, Key key, const Fallback& fallback, void* out);
  void show_kept(const SampleStore::Found& found, const std::string& path, size_t index,
                 const Transform& transform, Key key, const Fallback& fallback, void* out);
  std::span<const uint8_t> read(Files& files, size_t index);
  // The file's bytes, from the spill if they are there; otherwise they are then.
  std::span<const uint8_t> read(const ImageCache& cache, Files& files, size_t index);
  // Keeps a claimed image, if there is room; whether it was shown, too.
  bool keep(const ImageCache& cache, const std::string& path, std::span<const uint8_t> bytes, size_t index,
            const Transform& transform, Key key, const Fallback& fallback, void* out);
  void show_decoded(const DecodedImage& image, size_t index, const Transform& transform, Key key, void* out);
  void show_planes(const Planes& planes, size_t index, const Transform& transform, Key key, void* out);
  // The box of the upright image that rows and columns of `view` need, at 1 / reduction of the size.
  Pixels decode_upright(const Box& box, int reduction, int orientation);
  void render(const std::function<Pixels(const Box&, int)>& decode, const View& view,
              const Transform& transform, Random& random, int most_reduction, void* out);

  JpegDecoder decoder_;
  Resizer resizer_;
  PlanesToRgb to_rgb_;
  Filter vertical_, horizontal_;
  std::vector<uint8_t> file_, upright_, jittered_;
  std::span<const uint8_t> given_;
  Laps laps_;
  double read_seconds_ = 0, decode_seconds_ = 0;  // of the last image shown
  int64_t pixels_ = 0;
  bool has_planes_ = false;
};

// Loaders that wait for the next image or epoch, warm: what they keep took page faults to get.
class IdleLoaders {
 public:
  std::unique_ptr<ImageLoader> take();
  void put_back(std::unique_ptr<ImageLoader> loader);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<ImageLoader>> idle_;
};

}  // namespace foreload
