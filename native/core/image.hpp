// One image's way from a file to its place in the batch: read, decode what is needed, resize, jitter, store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "jpeg.hpp"
#include "random.hpp"
#include "resize.hpp"
#include "view.hpp"

namespace foreload {

// Where encoded images come from: a list of files, whose bytes may be held in memory.
class ImageFiles {
 public:
  // `holds` makes room for bytes kept in memory.
  ImageFiles(std::vector<std::string> paths, bool holds);

  size_t size() const { return paths_.size(); }
  const std::string& path(size_t index) const { return paths_[index]; }
  // Reads file `index` into memory, where it stays; `holds` must have been given. Safe from several threads
  // for different indices. Returns its size in bytes. Throws Error(system).
  size_t hold(size_t index);
  // The bytes held, or those of the file, read into `buffer`. Throws Error(system), Error(decode) if empty.
  std::span<const uint8_t> bytes(size_t index, std::vector<uint8_t>& buffer) const;

 private:
  std::vector<std::string> paths_;
  std::vector<std::vector<uint8_t>> held_;
};

// A whole decoded, upright image, and what keeps it alive.
struct DecodedImage {
  const uint8_t* pixels = nullptr;
  int width = 0, height = 0;
  std::shared_ptr<const void> owner;
};

// Decodes what the native decoder does not (PNG, WebP, CMYK, ...). It is given the file's bytes.
using Fallback = std::function<DecodedImage(const std::string& path, std::span<const uint8_t> bytes)>;

// More pixels than this is a mistake or an attack (Pillow's limit for an error).
constexpr int64_t kMostPixels = 178956970;

// One per thread; buffers are kept from image to image.
class ImageLoader {
 public:
  // Writes image `index` as `transform` shows it, with the randomness named by (key, index), to `out`.
  // Throws Error, or what `fallback` throws.
  void load(const ImageFiles& files, size_t index, const Transform& transform, Key key,
            const Fallback& fallback, void* out);

  // Decodes the whole upright image into RGB rows without gaps; valid until the next call.
  DecodedImage decode(const std::string& path, std::span<const uint8_t> bytes, const Fallback& fallback);

 private:
  // The box of the upright image that rows and columns of `view` need, at 1 / reduction of the size.
  Pixels decode_upright(const Box& box, int reduction, int orientation);
  void render(const std::function<Pixels(const Box&, int)>& decode, const View& view,
              const Transform& transform, Random& random, int most_reduction, void* out);

  JpegDecoder decoder_;
  Resizer resizer_;
  Filter vertical_, horizontal_;
  std::vector<uint8_t> file_, upright_, jittered_;
};

}  // namespace foreload
