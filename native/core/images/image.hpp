// Loads an image from a file into the batch: read, decode what is needed, resize, jitter, write.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
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

// A whole decoded, upright image, and the owner of its pixels.
struct DecodedImage {
  const uint8_t* pixels = nullptr;
  int width = 0, height = 0;
  std::shared_ptr<const void> owner;
};

// Decodes the bytes of a file that the native decoder leaves to others: one that it does not support (PNG,
// WebP, CMYK, ...), or a JPEG that is not sound.
using Fallback = std::function<DecodedImage(const std::string& path, std::span<const uint8_t> bytes)>;

// More pixels than this is a mistake or an attack (Pillow's limit for an error).
constexpr int64_t kMaxPixels = 178956970;

// The costs of each image: of loading it, and of keeping it. Written by any thread.
struct ImageCosts {
  explicit ImageCosts(size_t images)
      : read(images), decode(images), encoded(images), pixels(images), has_planes(images) {}
  std::vector<std::atomic<float>> read, decode;        // seconds; 0: unknown
  std::vector<std::atomic<uint32_t>> encoded, pixels;  // bytes of the file, pixels of the image
  std::vector<std::atomic<uint8_t>> has_planes;        // whether it can be kept as Form::planes

  // Records that these images were read together, in this time.
  void read_together(std::span<const size_t> images, double seconds) {
    const auto each = static_cast<float>(seconds / static_cast<double>(images.size()));
    for (const size_t image : images) read[image].store(each, std::memory_order_relaxed);
  }
};

// The cache of decoded or encoded images.
struct ImageCache {
  SampleStore* store = nullptr;
  // A Form per image, for those that the store keeps. Form::view: if the transform is fixed, else planes.
  // What has no planes is kept as RGB instead.
  const uint8_t* forms = nullptr;
  ImageCosts* costs = nullptr;
  // Keep the file's bytes at first, and decode the whole image when it is requested again: most may be
  // evicted before that, and a random crop needs only a part.
  bool decode_late = false;
};

// Throws Error(decode) if an image has more than that.
void check_size(int width, int height);

// What a transform takes of a JPEG that something else decodes.
struct PlannedView {
  int orientation = 1;        // by Exif
  int width = 0, height = 0;  // of the upright image
  View view;                  // of that
};

// Used by one thread at a time; buffers are kept from image to image.
class ImageLoader {
 public:
  // Writes image `index` to `out` as `transform` views it, with the random numbers of (key, index).
  // Throws Error, or what `fallback` throws.
  void load(Files& files, size_t index, const Transform& transform, Key key, const Fallback& fallback,
            void* out);

  // The same through a cache.
  void load(const ImageCache& cache, Files& files, size_t index, const Transform& transform, Key key,
            const Fallback& fallback, void* out);

  // Decodes the whole upright image into RGB rows without gaps, through a cache.
  DecodedImage decode(const ImageCache& cache, Files& files, size_t index, const std::string& path,
                      const Fallback& fallback);

  // Draws the view that load() would write of a JPEG, by its header alone; none if it is of an unusual kind,
  // or does not end as a whole file does.
  std::optional<PlannedView> plan(std::span<const uint8_t> bytes, size_t index, const Transform& transform,
                                  Key key);

  // Makes the next load() use bytes that were read already; they must live until then.
  void set_input(std::span<const uint8_t> bytes) { input_ = bytes; }

  // Whether the view of the last image shown was drawn mirrored, if its transform draws that.
  bool mirrored() const { return mirrored_; }

  // The same for an upright image that is decoded already.
  void show(const DecodedImage& image, size_t index, const Transform& transform, Key key, void* out);

  // Decodes the whole upright image into RGB rows without gaps; valid until the next call.
  DecodedImage decode(const std::string& path, std::span<const uint8_t> bytes, const Fallback& fallback);

 private:
  struct Picture;
  struct Whole;
  // Draws the view to write; see mirrored().
  View draw_view(const Transform& transform, int width, int height, Random& random);
  // The same for encoded bytes.
  void show_encoded(const std::string& path, std::span<const uint8_t> bytes, size_t index,
                    const Transform& transform, Key key, const Fallback& fallback, void* out);
  void show_kept(const SampleStore::Found& found, const std::string& path, size_t index,
                 const Transform& transform, Key key, const Fallback& fallback, void* out);
  std::span<const uint8_t> read(Files& files, size_t index);
  // Reads the bytes from the spill, or from the file and spills them.
  std::span<const uint8_t> read(const ImageCache& cache, Files& files, size_t index);
  using Show = std::function<void(const SampleStore::Found&)>;
  struct Missing {
    bool claimed = false;
    std::span<const uint8_t> bytes;  // of its file, if they were kept
  };
  // Requests an image, and shows it if it is kept in a way that the transform (null: none) can use.
  std::optional<Missing> find(const ImageCache& cache, size_t index, const Transform* transform,
                              const Show& show);
  static bool can_use(const SampleStore::Found& found, const Transform* transform);
  // Keeps a claimed image, if there is room and it is sound, or abandons it; returns whether it was shown,
  // too.
  bool keep(const ImageCache& cache, const std::string& path, std::span<const uint8_t> bytes, size_t index,
            const Transform& transform, Key key, const Fallback& fallback, bool late, bool& claimed,
            void* out);
  void keep_bytes(SampleStore& store, size_t index, std::span<const uint8_t> bytes);
  // Shows what a fixed transform makes of a claimed image, and keeps that.
  void keep_view(SampleStore& store, const std::string& path, std::span<const uint8_t> bytes, size_t index,
                 const Transform& transform, Key key, const Fallback& fallback, void* out);
  // Decodes a claimed image into the store; none if that is impossible, and it is abandoned.
  std::optional<Whole> decode_whole(SampleStore& store, Form form, const std::string& path,
                                    std::span<const uint8_t> bytes, size_t index, const Fallback& fallback);
  void show_view(const uint8_t* bytes, const Transform& transform, void* out);
  // Changes the colours of jittered_, three planes of bytes, and writes them.
  void jitter(const Transform& transform, Random& random, void* out);
  void show_decoded(const DecodedImage& image, size_t index, const Transform& transform, Key key, void* out);
  void show_planes(const Planes& planes, size_t index, const Transform& transform, Key key, void* out);
  // Decodes a box of the upright image at 1 / reduction of the size; none if the file is not sound.
  std::optional<Pixels> decode_upright(const Box& box, int reduction, int orientation);
  // Returns false, and writes nothing, if there are no pixels.
  bool render(const std::function<std::optional<Pixels>(const Box&, int)>& decode, const View& view,
              const Transform& transform, Random& random, int most_reduction, void* out);
  // What show_encoded() does with a sound JPEG; false if it is none.
  bool show_jpeg(std::span<const uint8_t> bytes, size_t index, const Transform& transform, Key key,
                 void* out);

  JpegDecoder decoder_;
  Resizer resizer_;
  PlanesToRgb to_rgb_;
  Filter vertical_, horizontal_;
  std::vector<uint8_t> file_, upright_, jittered_, view_;
  std::span<const uint8_t> input_;
  Laps laps_;
  double read_seconds_ = 0, decode_seconds_ = 0;  // of the last image shown
  int64_t pixels_ = 0;
  bool has_planes_ = false;
  bool mirrored_ = false;
};

// Loaders that are kept for the next image or epoch: getting the memory of their buffers took page faults.
class IdleLoaders {
 public:
  std::unique_ptr<ImageLoader> take();
  void put_back(std::unique_ptr<ImageLoader> loader);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<ImageLoader>> idle_;
};

}  // namespace foreload
