// Loads images through the cache: kept encoded, as RGB or as planes.
#include <algorithm>
#include <cstring>

#include "error.hpp"
#include "image.hpp"
#include "orientation.hpp"

namespace foreload {

// The header of a decoded image in the store.
struct ImageLoader::Picture {
  int32_t width, height;
  uint8_t unused[56];  // pixels begin on a cache line

  static const Picture* in(const uint8_t* bytes) { return reinterpret_cast<const Picture*>(bytes); }
  static size_t rgb_bytes(int64_t pixels) { return sizeof(Picture) + 3 * static_cast<size_t>(pixels); }
};

void ImageLoader::show_kept(const SampleStore::Found& found, const std::string& path, size_t index,
                            const Transform& transform, Key key, const Fallback& fallback, void* out) {
  if (found.form == Form::encoded) {
    show_encoded(path, {found.bytes, found.size}, index, transform, key, fallback, out);
    return;
  }
  const Picture* picture = Picture::in(found.bytes);
  if (found.form == Form::planes) {
    show_planes(planes_in(found.bytes + sizeof(Picture), picture->width, picture->height), index, transform,
                key, out);
    return;
  }
  show_decoded({found.bytes + sizeof(Picture), picture->width, picture->height, nullptr}, index, transform,
               key, out);
}

void ImageLoader::show_planes(const Planes& planes, size_t index, const Transform& transform, Key key,
                              void* out) {
  Random random(key, index);
  const View view = choose_view(transform, planes.width, planes.height, random);
  render([&](const Box& box, int) { return to_rgb_.convert(planes, box); }, view, transform, random, 1, out);
}

bool ImageLoader::keep(const ImageCache& cache, const std::string& path, std::span<const uint8_t> bytes,
                       size_t index, const Transform& transform, Key key, const Fallback& fallback,
                       void* out) {
  SampleStore& store = *cache.store;
  if (static_cast<Form>(cache.forms[index]) == Form::encoded) {
    if (uint8_t* const to = store.reserve(index, bytes.size(), Form::encoded)) {
      std::memcpy(to, bytes.data(), bytes.size());
      store.commit(index);
      laps_.end(Stage::cache, bytes.size());
    }
    return false;
  }
  DecodedImage image;
  uint8_t* to = nullptr;
  if (looks_like_jpeg(bytes) && decoder_.open(bytes)) {
    const int orientation = exif_orientation(bytes);
    image.width = decoder_.width(), image.height = decoder_.height();
    check_size(image.width, image.height);
    if (sideways(orientation)) std::swap(image.width, image.height);
    pixels_ = int64_t{image.width} * image.height;
    has_planes_ = orientation == 1 && decoder_.has_planes();
    if (has_planes_ && static_cast<Form>(cache.forms[index]) == Form::planes) {
      const size_t size = sizeof(Picture) + planes_bytes(image.width, image.height);
      to = store.reserve(index, size, Form::planes);
      if (to == nullptr) return false;
      if (!decoder_.decode_planes(to + sizeof(Picture))) {
        store.abandon(index);
        return false;
      }
      decode_seconds_ = laps_.end(Stage::decode, bytes.size());
      *reinterpret_cast<Picture*>(to) = {image.width, image.height, {}};
      show_planes(planes_in(to + sizeof(Picture), image.width, image.height), index, transform, key, out);
      store.commit(index);
      return true;
    }
    to = store.reserve(index, Picture::rgb_bytes(pixels_), Form::rgb);
    if (to == nullptr) return false;
    const auto all = decode_upright({0, 0, image.width, image.height}, 1, orientation);
    if (!all) {
      store.abandon(index);
      return false;
    }
    const size_t row = static_cast<size_t>(image.width) * 3;
    for (size_t y = 0; y < static_cast<size_t>(image.height); ++y) {
      std::memcpy(to + sizeof(Picture) + y * row, all->pixels + y * all->stride, row);
    }
    // The pixels stay in the store at least until they are committed: until then they cannot be dropped.
    image.pixels = to + sizeof(Picture);
  } else {
    image = fallback(path, bytes);
    has_planes_ = false;
    pixels_ = int64_t{image.width} * image.height;
    to = store.reserve(index, Picture::rgb_bytes(pixels_), Form::rgb);
    if (to != nullptr) std::memcpy(to + sizeof(Picture), image.pixels, 3 * static_cast<size_t>(pixels_));
  }
  decode_seconds_ = laps_.end(Stage::decode, bytes.size());
  show_decoded(image, index, transform, key, out);
  if (to != nullptr) {
    *reinterpret_cast<Picture*>(to) = {image.width, image.height, {}};
    store.commit(index);
  }
  return true;
}

std::span<const uint8_t> ImageLoader::read(const ImageCache& cache, Files& files, size_t index) {
  Spill* const spill = cache.store->spill();
  if (spill == nullptr) return read(files, index);
  size_t size = 0;
  uint32_t form = 0;
  if (spill->read(index, file_, size, form) && static_cast<Form>(form) == Form::encoded) {
    read_seconds_ = laps_.end(Stage::read, size);
    return {file_.data(), size};
  }
  const std::span<const uint8_t> bytes = read(files, index);
  spill->write(index, static_cast<uint32_t>(Form::encoded), std::span(&bytes, 1));
  laps_.end(Stage::cache, bytes.size());
  return bytes;
}

void ImageLoader::load(const ImageCache& cache, Files& files, size_t index, const Transform& transform,
                       Key key, const Fallback& fallback, void* out) {
  const std::string& path = files.path(index);
  SampleStore::Found found;
  laps_.begin(true);  // its cost decides what is kept
  {
    SampleStore::Section section(*cache.store);
    found = cache.store->request(section, index);
    laps_.end(Stage::cache, found.outcome == SampleStore::Outcome::hit ? found.size : 0);
    if (found.outcome == SampleStore::Outcome::hit) {
      show_kept(found, path, index, transform, key, fallback, out);
      return;
    }
  }
  bool claimed = found.outcome == SampleStore::Outcome::claimed;
  try {
    const auto bytes = read(cache, files, index);
    const bool is_shown = claimed && keep(cache, path, bytes, index, transform, key, fallback, out);
    claimed = false;  // kept or abandoned: another worker may claim it now
    if (!is_shown) show_encoded(path, bytes, index, transform, key, fallback, out);
    ImageCosts& costs = *cache.costs;
    if (read_seconds_ > 0) {
      costs.read[index].store(static_cast<float>(read_seconds_), std::memory_order_relaxed);
    }
    // A kept image is decoded whole, which takes longer than what a hit saves: decoding the part that is
    // shown.
    if (!is_shown || costs.decode[index].load(std::memory_order_relaxed) == 0) {
      costs.decode[index].store(static_cast<float>(decode_seconds_), std::memory_order_relaxed);
    }
    costs.encoded[index].store(static_cast<uint32_t>(bytes.size()), std::memory_order_relaxed);
    costs.pixels[index].store(static_cast<uint32_t>(pixels_), std::memory_order_relaxed);
    costs.has_planes[index].store(has_planes_ ? 1 : 0, std::memory_order_relaxed);
  } catch (Error& error) {
    if (claimed) cache.store->abandon(index);
    if (error.file.empty()) error.file = path;
    throw;
  } catch (...) {
    if (claimed) cache.store->abandon(index);
    throw;
  }
}

}  // namespace foreload
