// Loads images through the cache: kept encoded, as RGB or as planes.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "error.hpp"
#include "image.hpp"
#include "orientation.hpp"

namespace foreload {

// The header of an image in the store, unless it is kept as the bytes of its file.
struct ImageLoader::Picture {
  int32_t width = 0, height = 0;
  uint8_t is_jpeg = 0;      // decoded natively
  Shape shape;              // of Form::view
  uint8_t unused[32] = {};  // pixels begin on a cache line

  static const Picture* in(const uint8_t* bytes) { return reinterpret_cast<const Picture*>(bytes); }
  static const uint8_t* pixels_in(const uint8_t* bytes) { return bytes + sizeof(Picture); }
};

// A whole decoded image, and its place in the store, if it has one.
struct ImageLoader::Whole {
  static_assert(sizeof(Picture) == 64);

  DecodedImage image;
  bool is_jpeg = false;
  std::optional<Planes> planes;  // instead of the image's pixels
  uint8_t* to = nullptr;

  void commit(SampleStore& store, size_t index) const {
    if (to == nullptr) return;
    new (to) Picture{image.width, image.height, is_jpeg, {}};
    store.commit(index);
  }
};

namespace {

// Whether the decoder may shrink an image, upright or not, of which other pixels come than of a whole one.
bool may_shrink(const Transform& transform, int width, int height) {
  return transform.fast && std::min(width, height) >= 2 * std::min(transform.width, transform.height) &&
         std::max(width, height) >= 2 * std::max(transform.width, transform.height);
}

// Copies pixels to rows without gaps.
DecodedImage packed(const Pixels& pixels, int width, int height) {
  const size_t row = static_cast<size_t>(width) * 3;
  auto memory = std::make_shared<std::vector<uint8_t>>(row * static_cast<size_t>(height));
  for (size_t y = 0; y < static_cast<size_t>(height); ++y) {
    std::memcpy(memory->data() + y * row, pixels.pixels + y * pixels.stride, row);
  }
  return {memory->data(), width, height, memory};
}

}  // namespace

bool ImageLoader::can_use(const SampleStore::Found& found, const Transform* transform) {
  if (found.form == Form::encoded) return true;
  const Picture& picture = *Picture::in(found.bytes);
  if (found.form == Form::view) {
    return transform != nullptr && is_fixed(*transform) && picture.shape == shape_of(*transform);
  }
  return transform == nullptr || picture.is_jpeg == 0 ||
         !may_shrink(*transform, picture.width, picture.height);
}

std::optional<ImageLoader::Missing> ImageLoader::find(const ImageCache& cache, size_t index,
                                                      const Transform* transform, const Show& show) {
  SampleStore::Section section(*cache.store);
  const SampleStore::Found found = cache.store->request(section, index);
  const bool is_hit = found.outcome == SampleStore::Outcome::hit;
  laps_.end(Stage::cache, is_hit ? found.size : 0);
  if (!is_hit) return Missing{found.outcome == SampleStore::Outcome::claimed, {}};
  const bool is_late = found.form == Form::encoded && cache.decode_late && transform != nullptr &&
                       !transform->fast && static_cast<Form>(cache.forms[index]) != Form::encoded;
  if (!is_late && can_use(found, transform)) {
    show(found);
    return std::nullopt;
  }
  Missing missing;
  if (is_late) {
    if (file_.size() < found.size) file_.resize(found.size);
    std::memcpy(file_.data(), found.bytes, found.size);
    missing.bytes = {file_.data(), found.size};
    read_seconds_ = 0;
  }
  missing.claimed = cache.store->claim_present(section, index);
  return missing;
}

void ImageLoader::show_kept(const SampleStore::Found& found, const std::string& path, size_t index,
                            const Transform& transform, Key key, const Fallback& fallback, void* out) {
  if (found.form == Form::encoded) {
    show_encoded(path, {found.bytes, found.size}, index, transform, key, fallback, out);
    return;
  }
  const Picture& picture = *Picture::in(found.bytes);
  const uint8_t* const pixels = Picture::pixels_in(found.bytes);
  if (found.form == Form::view) {
    show_view(pixels, transform, out);
  } else if (found.form == Form::planes) {
    show_planes(planes_in(pixels, picture.width, picture.height), index, transform, key, out);
  } else {
    show_decoded({pixels, picture.width, picture.height, nullptr}, index, transform, key, out);
  }
}

void ImageLoader::show_view(const uint8_t* bytes, const Transform& transform, void* out) {
  if (transform.output.normalise) {
    resizer_.normalise(bytes, static_cast<size_t>(transform.height), static_cast<size_t>(transform.width),
                       transform.output, static_cast<float*>(out));
  } else {
    std::memcpy(out, bytes, transform.sample_bytes());
  }
  laps_.end(Stage::transform);
}

void ImageLoader::show_planes(const Planes& planes, size_t index, const Transform& transform, Key key,
                              void* out) {
  Random random(key, index);
  const View view = draw_view(transform, planes.width, planes.height, random);
  render([&](const Box& box, int) { return to_rgb_.convert_to_planes(planes, box); }, view, transform, random,
         1, out);
}

void ImageLoader::keep_bytes(SampleStore& store, size_t index, std::span<const uint8_t> bytes) {
  uint8_t* const to = store.reserve(index, bytes.size(), Form::encoded);
  if (to == nullptr) return;
  std::memcpy(to, bytes.data(), bytes.size());
  store.commit(index);
  laps_.end(Stage::cache, bytes.size());
}

void ImageLoader::keep_view(SampleStore& store, const std::string& path, std::span<const uint8_t> bytes,
                            size_t index, const Transform& transform, Key key, const Fallback& fallback,
                            void* out) {
  Transform plain = transform;
  plain.output.normalise = false;
  const size_t size = plain.sample_bytes();
  view_.resize(std::max(view_.size(), size));
  show_encoded(path, bytes, index, plain, key, fallback, view_.data());
  show_view(view_.data(), transform, out);
  uint8_t* const to = store.reserve(index, sizeof(Picture) + size, Form::view);
  if (to == nullptr) return;
  new (to) Picture{transform.width, transform.height, 0, shape_of(transform)};
  std::memcpy(to + sizeof(Picture), view_.data(), size);
  store.commit(index);
  laps_.end(Stage::cache, size);
}

std::optional<ImageLoader::Whole> ImageLoader::decode_whole(SampleStore& store, Form form,
                                                            const std::string& path,
                                                            std::span<const uint8_t> bytes, size_t index,
                                                            const Fallback& fallback) {
  Whole whole;
  DecodedImage& image = whole.image;
  const auto said = exif_orientation(bytes);
  whole.is_jpeg = said && looks_like_jpeg(bytes) && decoder_.open(bytes);
  if (!whole.is_jpeg) {
    image = fallback(path, bytes);
    has_planes_ = false;
    pixels_ = int64_t{image.width} * image.height;
    const size_t size = 3 * static_cast<size_t>(pixels_);
    whole.to = store.reserve(index, sizeof(Picture) + size, Form::rgb);
    if (whole.to != nullptr) std::memcpy(whole.to + sizeof(Picture), image.pixels, size);
    decode_seconds_ = laps_.end(Stage::decode, bytes.size());
    return whole;
  }
  const int orientation = *said;
  image.width = decoder_.width(), image.height = decoder_.height();
  check_size(image.width, image.height);
  if (sideways(orientation)) std::swap(image.width, image.height);
  pixels_ = int64_t{image.width} * image.height;
  has_planes_ = orientation == 1 && decoder_.has_planes();
  const bool as_planes = has_planes_ && form != Form::rgb;
  const size_t size = as_planes ? planes_bytes(image.width, image.height) : 3 * static_cast<size_t>(pixels_);
  whole.to = store.reserve(index, sizeof(Picture) + size, as_planes ? Form::planes : Form::rgb);
  if (whole.to == nullptr) return std::nullopt;
  uint8_t* const to = whole.to + sizeof(Picture);
  if (as_planes) {
    if (!decoder_.decode_planes(to)) {
      store.abandon(index);
      return std::nullopt;
    }
    whole.planes = planes_in(to, image.width, image.height);
  } else {
    const auto all = decode_upright({0, 0, image.width, image.height}, 1, orientation);
    if (!all) {
      store.abandon(index);
      return std::nullopt;
    }
    const size_t row = static_cast<size_t>(image.width) * 3;
    for (size_t y = 0; y < static_cast<size_t>(image.height); ++y) {
      std::memcpy(to + y * row, all->pixels + y * all->stride, row);
    }
    // The pixels stay in the store at least until they are committed: until then they cannot be dropped.
    image.pixels = to;
  }
  decode_seconds_ = laps_.end(Stage::decode, bytes.size());
  return whole;
}

bool ImageLoader::keep(const ImageCache& cache, const std::string& path, std::span<const uint8_t> bytes,
                       size_t index, const Transform& transform, Key key, const Fallback& fallback, bool late,
                       bool& claimed, void* out) {
  SampleStore& store = *cache.store;
  const auto form = static_cast<Form>(cache.forms[index]);
  if (form == Form::view && is_fixed(transform)) {
    keep_view(store, path, bytes, index, transform, key, fallback, out);
    return true;
  }
  if (form == Form::encoded || late ||
      (transform.fast && looks_like_jpeg(bytes) && decoder_.open(bytes) &&
       may_shrink(transform, decoder_.width(), decoder_.height()))) {
    keep_bytes(store, index, bytes);
    return false;
  }
  const auto whole = decode_whole(store, form, path, bytes, index, fallback);
  claimed = whole && whole->to != nullptr;  // otherwise it is abandoned: another worker may claim it now
  if (!whole) return false;
  if (whole->planes) {
    show_planes(*whole->planes, index, transform, key, out);
  } else {
    show_decoded(whole->image, index, transform, key, out);
  }
  whole->commit(store, index);
  return true;
}

std::span<const uint8_t> ImageLoader::read(const ImageCache& cache, Files& files, size_t index) {
  Spill* const spill = cache.store->spill();
  if (spill == nullptr) return read(files, index);
  size_t size = 0;
  uint32_t form = 0;
  if (spill->read(index, file_, size, form) && static_cast<Form>(form) == Form::encoded) {
    if (!spill->needs_check(index)) {
      read_seconds_ = laps_.end(Stage::read, size);
      return {file_.data(), size};
    }
    const std::vector<uint8_t> kept(file_.begin(), file_.begin() + static_cast<ptrdiff_t>(size));
    const std::span<const uint8_t> bytes = read(files, index);
    spill->note_check(index, std::ranges::equal(kept, bytes));
    return bytes;
  }
  const std::span<const uint8_t> bytes = read(files, index);
  spill->write(index, static_cast<uint32_t>(Form::encoded), std::span(&bytes, 1));
  laps_.end(Stage::cache, bytes.size());
  return bytes;
}

void ImageLoader::load(const ImageCache& cache, Files& files, size_t index, const Transform& transform,
                       Key key, const Fallback& fallback, void* out) {
  const std::string& path = files.path(index);
  laps_.begin(true);  // its cost decides what is kept
  const auto missing = find(cache, index, &transform, [&](const SampleStore::Found& found) {
    show_kept(found, path, index, transform, key, fallback, out);
  });
  if (!missing) return;
  bool claimed = missing->claimed;
  try {
    const bool was_kept = !missing->bytes.empty();
    const auto bytes = was_kept ? missing->bytes : read(cache, files, index);
    const bool late = cache.decode_late && !was_kept;
    const bool is_shown =
        claimed && keep(cache, path, bytes, index, transform, key, fallback, late, claimed, out);
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

DecodedImage ImageLoader::decode(const ImageCache& cache, Files& files, size_t index, const std::string& path,
                                 const Fallback& fallback) {
  SampleStore& store = *cache.store;
  DecodedImage image;
  const auto copy = [&](const Planes& planes) {
    return packed(to_rgb_.convert(planes, {0, 0, planes.width, planes.height}), planes.width, planes.height);
  };
  laps_.begin(false);
  const auto missing = find(cache, index, nullptr, [&](const SampleStore::Found& found) {
    if (found.form == Form::encoded) {
      image = decode(path, {found.bytes, found.size}, fallback);
      return;
    }
    const auto [width, height] = std::pair(Picture::in(found.bytes)->width, Picture::in(found.bytes)->height);
    const uint8_t* const pixels = Picture::pixels_in(found.bytes);
    image = found.form == Form::planes ? copy(planes_in(pixels, width, height))
                                       : packed({pixels, 3 * static_cast<size_t>(width)}, width, height);
  });
  if (!missing) return image;
  bool claimed = missing->claimed;
  try {
    const auto bytes = read(cache, files, index);
    const auto form = static_cast<Form>(cache.forms[index]);
    if (claimed && form != Form::encoded) {
      const auto whole = decode_whole(store, form, path, bytes, index, fallback);
      claimed = whole && whole->to != nullptr;  // otherwise it is abandoned
      if (whole) {
        image = whole->planes ? copy(*whole->planes)
                              : packed({whole->image.pixels, 3 * static_cast<size_t>(whole->image.width)},
                                       whole->image.width, whole->image.height);
        whole->commit(store, index);
        return image;
      }
    }
    if (claimed) keep_bytes(store, index, bytes);
    claimed = false;
    return decode(path, bytes, fallback);
  } catch (...) {
    if (claimed) store.abandon(index);
    throw;
  }
}

}  // namespace foreload
