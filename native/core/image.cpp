#include "image.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "error.hpp"
#include "orientation.hpp"
#include "read.hpp"

namespace foreload {

ImageFiles::ImageFiles(std::vector<std::string> paths, size_t keep) : paths_(std::move(paths)), kept_(keep) {}

std::span<const uint8_t> ImageFiles::bytes(size_t index, std::vector<uint8_t>& buffer) {
  Kept* const kept = index < kept_.size() ? &kept_[index] : nullptr;
  if (kept != nullptr && kept->state.load(std::memory_order_acquire) == present) return kept->bytes;
  const auto bytes = read_file(paths_[index], buffer);
  if (bytes.empty()) throw Error(ErrorKind::decode, "the file is empty", paths_[index]);
  State expected = absent;
  if (kept != nullptr && kept->state.compare_exchange_strong(expected, filling)) {
    kept->bytes.assign(bytes.begin(), bytes.end());
    kept->state.store(present, std::memory_order_release);
  }
  return bytes;
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void check_size(int width, int height) {
  if (static_cast<int64_t>(width) * height > kMostPixels) {
    throw Error(ErrorKind::decode, "the header claims " + std::to_string(width) + " x " +
                                       std::to_string(height) + " pixels, more than the limit of " +
                                       std::to_string(kMostPixels) + "; if it is real, shrink it first");
  }
}

}  // namespace

Pixels ImageLoader::decode_upright(const Box& box, int reduction, int orientation) {
  if (orientation == 1) return decoder_.decode(box, reduction);
  const int width = (decoder_.width() + reduction - 1) / reduction;
  const int height = (decoder_.height() + reduction - 1) / reduction;
  const Pixels stored = decoder_.decode(stored_box(orientation, width, height, box), reduction);
  const size_t stride = static_cast<size_t>(box.width) * 3;
  upright_.resize(std::max(upright_.size(), stride * static_cast<size_t>(box.height)));
  turn_upright(stored, orientation, box.width, box.height, upright_.data());
  return {upright_.data(), stride};
}

void ImageLoader::load(ImageFiles& files, size_t index, const Transform& transform, Key key,
                       const Fallback& fallback, void* out) {
  const std::string& path = files.path(index);
  try {
    show_encoded(path, files.bytes(index, file_), index, transform, key, fallback, out);
  } catch (Error& error) {
    if (error.file.empty()) error.file = path;
    throw;
  }
}

void ImageLoader::show_encoded(const std::string& path, std::span<const uint8_t> bytes, size_t index,
                               const Transform& transform, Key key, const Fallback& fallback, void* out) {
  if (!looks_like_jpeg(bytes) || !decoder_.open(bytes)) {
    const auto begin = Clock::now();
    const DecodedImage image = fallback(path, bytes);
    has_planes_ = false;
    decode_seconds_ = seconds_since(begin);
    pixels_ = int64_t{image.width} * image.height;
    show(image, index, transform, key, out);
    return;
  }
  Random random(key, index);
  const int orientation = exif_orientation(bytes);
  int width = decoder_.width(), height = decoder_.height();
  check_size(width, height);
  has_planes_ = orientation == 1 && decoder_.has_planes();
  pixels_ = int64_t{width} * height;
  if (sideways(orientation)) std::swap(width, height);
  const View view = choose_view(transform, width, height, random);
  const auto decode = [&](const Box& box, int reduction) {
    const auto begin = Clock::now();
    const Pixels pixels = decode_upright(box, reduction, orientation);
    decode_seconds_ = seconds_since(begin);
    return pixels;
  };
  render(decode, view, transform, random, transform.fast ? 8 : 1, out);
}

// Decoded images are kept behind their width and height.
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
    show_planes(planes_in(found.bytes + sizeof(Picture), picture->width, picture->height), index, transform, key,
                out);
    return;
  }
  show({found.bytes + sizeof(Picture), picture->width, picture->height, nullptr}, index, transform, key, out);
}

void ImageLoader::show_planes(const Planes& planes, size_t index, const Transform& transform, Key key,
                              void* out) {
  Random random(key, index);
  const View view = choose_view(transform, planes.width, planes.height, random);
  render([&](const Box& box, int) { return to_rgb_.convert(planes, box); }, view, transform, random, 1, out);
}

bool ImageLoader::keep(const ImageCache& cache, const std::string& path, std::span<const uint8_t> bytes,
                       size_t index, const Transform& transform, Key key, const Fallback& fallback, void* out) {
  SampleStore& store = *cache.store;
  if (static_cast<Form>(cache.forms[index]) == Form::encoded) {
    if (uint8_t* const to = store.reserve(index, bytes.size(), Form::encoded)) {
      std::memcpy(to, bytes.data(), bytes.size());
      store.commit(index);
    }
    return false;
  }
  DecodedImage image;
  uint8_t* to = nullptr;
  const auto begin = Clock::now();
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
      decoder_.decode_planes(to + sizeof(Picture));
      decode_seconds_ = seconds_since(begin);
      *reinterpret_cast<Picture*>(to) = {image.width, image.height, {}};
      show_planes(planes_in(to + sizeof(Picture), image.width, image.height), index, transform, key, out);
      store.commit(index);
      return true;
    }
    to = store.reserve(index, Picture::rgb_bytes(pixels_), Form::rgb);
    if (to == nullptr) return false;
    const Pixels all = decode_upright({0, 0, image.width, image.height}, 1, orientation);
    const size_t row = static_cast<size_t>(image.width) * 3;
    for (size_t y = 0; y < static_cast<size_t>(image.height); ++y) {
      std::memcpy(to + sizeof(Picture) + y * row, all.pixels + y * all.stride, row);
    }
    // The pixels stay in the store at least until it is committed, and until then nobody drops them.
    image.pixels = to + sizeof(Picture);
  } else {
    image = fallback(path, bytes);
    has_planes_ = false;
    pixels_ = int64_t{image.width} * image.height;
    to = store.reserve(index, Picture::rgb_bytes(pixels_), Form::rgb);
    if (to != nullptr) std::memcpy(to + sizeof(Picture), image.pixels, 3 * static_cast<size_t>(pixels_));
  }
  decode_seconds_ = seconds_since(begin);
  show(image, index, transform, key, out);
  if (to != nullptr) {
    *reinterpret_cast<Picture*>(to) = {image.width, image.height, {}};
    store.commit(index);
  }
  return true;
}

std::span<const uint8_t> ImageLoader::read(const ImageCache& cache, ImageFiles& files, size_t index) {
  Spill* const spill = cache.store->spill();
  if (spill == nullptr) return files.bytes(index, file_);
  size_t size = 0;
  uint32_t form = 0;
  if (spill->read(index, file_, size, form) && static_cast<Form>(form) == Form::encoded) return {file_.data(), size};
  const std::span<const uint8_t> bytes = files.bytes(index, file_);
  spill->write(index, static_cast<uint32_t>(Form::encoded), std::span(&bytes, 1));
  return bytes;
}

void ImageLoader::load(const ImageCache& cache, ImageFiles& files, size_t index, const Transform& transform,
                       Key key, const Fallback& fallback, void* out) {
  const std::string& path = files.path(index);
  SampleStore::Found found;
  {
    SampleStore::Section section(*cache.store);
    found = cache.store->request(section, index);
    if (found.outcome == SampleStore::Outcome::hit) {
      show_kept(found, path, index, transform, key, fallback, out);
      return;
    }
  }
  const bool claimed = found.outcome == SampleStore::Outcome::claimed;
  try {
    const auto begin = Clock::now();
    const auto bytes = read(cache, files, index);
    const double read_seconds = seconds_since(begin);
    if (!claimed || !keep(cache, path, bytes, index, transform, key, fallback, out)) {
      show_encoded(path, bytes, index, transform, key, fallback, out);
    }
    ImageCosts& costs = *cache.costs;
    costs.read[index].store(static_cast<float>(read_seconds), std::memory_order_relaxed);
    costs.decode[index].store(static_cast<float>(decode_seconds_), std::memory_order_relaxed);
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

void ImageLoader::show(const DecodedImage& image, size_t index, const Transform& transform, Key key,
                       void* out) {
  Random random(key, index);
  const View view = choose_view(transform, image.width, image.height, random);
  const size_t stride = static_cast<size_t>(image.width) * 3;
  const auto decode = [&](const Box& box, int) {
    return Pixels{image.pixels + static_cast<size_t>(box.y) * stride + static_cast<size_t>(box.x) * 3,
                  stride};
  };
  render(decode, view, transform, random, 1, out);
}

DecodedImage ImageLoader::decode(const std::string& path, std::span<const uint8_t> bytes,
                                 const Fallback& fallback) {
  if (!looks_like_jpeg(bytes) || !decoder_.open(bytes)) return fallback(path, bytes);
  const int orientation = exif_orientation(bytes);
  int width = decoder_.width(), height = decoder_.height();
  check_size(width, height);
  if (sideways(orientation)) std::swap(width, height);
  const Pixels image = decode_upright({0, 0, width, height}, 1, orientation);
  const size_t stride = static_cast<size_t>(width) * 3;
  auto packed = std::make_shared<std::vector<uint8_t>>(stride * static_cast<size_t>(height));
  for (int y = 0; y < height; ++y) {
    std::memcpy(packed->data() + static_cast<size_t>(y) * stride,
                image.pixels + static_cast<size_t>(y) * image.stride, stride);
  }
  return {packed->data(), width, height, packed};
}

void ImageLoader::render(const std::function<Pixels(const Box&, int)>& decode, const View& view,
                         const Transform& transform, Random& random, int most_reduction, void* out) {
  Box box = view.box;
  int reduction = 1;
  // Where the box is at least twice what is wanted, the inverse DCT may do half of the resizing.
  while (reduction < most_reduction && box.width >= 2 * reduction * view.full_width &&
         box.height >= 2 * reduction * view.full_height) {
    reduction *= 2;
  }
  if (reduction > 1) {
    box = {box.x / reduction, box.y / reduction, box.width / reduction, box.height / reduction};
  }
  vertical_.plan(box.height, view.full_height, view.top, transform.height, false);
  horizontal_.plan(box.width, view.full_width, view.left, transform.width, view.mirrored);
  const Box needed{box.x + horizontal_.begin(), box.y + vertical_.begin(),
                   horizontal_.end() - horizontal_.begin(), vertical_.end() - vertical_.begin()};
  Pixels pixels = decode(needed, reduction);
  // The filters count from the corner of the box.
  const uint8_t* corner = pixels.pixels -
                          static_cast<ptrdiff_t>(vertical_.begin()) * static_cast<ptrdiff_t>(pixels.stride) -
                          static_cast<ptrdiff_t>(horizontal_.begin()) * 3;
  if (!transform.jitter.any()) {
    resizer_.resize(corner, pixels.stride, vertical_, horizontal_, transform.store, out);
    return;
  }
  const size_t count = static_cast<size_t>(transform.height) * static_cast<size_t>(transform.width);
  jittered_.resize(3 * count);
  resizer_.resize(corner, pixels.stride, vertical_, horizontal_, Store{}, jittered_.data());
  apply_jitter(transform.jitter, random, jittered_.data(), count);
  const bool last = transform.store.channels_last;
  for (size_t color = 0; color < 3; ++color) {
    const uint8_t* from = jittered_.data() + color * count;
    const size_t step = last ? 3 : 1;
    if (transform.store.normalise) {
      float* to = static_cast<float*>(out) + (last ? color : color * count);
      const float scale = transform.store.scale[color], bias = transform.store.bias[color];
      for (size_t i = 0; i < count; ++i) to[i * step] = static_cast<float>(from[i]) * scale + bias;
    } else {
      uint8_t* to = static_cast<uint8_t*>(out) + (last ? color : color * count);
      for (size_t i = 0; i < count; ++i) to[i * step] = from[i];
    }
  }
}

// Nobody waits here: a lock that another thread held when the process forked stays locked in the child.
std::unique_ptr<ImageLoader> LoaderShelf::take() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || idle_.empty()) return std::make_unique<ImageLoader>();
  auto loader = std::move(idle_.back());
  idle_.pop_back();
  return loader;
}

void LoaderShelf::put_back(std::unique_ptr<ImageLoader> loader) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) idle_.push_back(std::move(loader));
}

}  // namespace foreload
