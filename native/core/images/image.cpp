#include "image.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "error.hpp"
#include "orientation.hpp"

namespace foreload {

void check_size(int width, int height) {
  if (static_cast<int64_t>(width) * height > kMaxPixels) {
    throw Error(ErrorKind::decode, "the header claims " + std::to_string(width) + " x " +
                                       std::to_string(height) + " pixels, more than the limit of " +
                                       std::to_string(kMaxPixels) + "; if it is real, shrink it first");
  }
}

View ImageLoader::draw_view(const Transform& transform, int width, int height, Random& random) {
  View view = choose_view(transform, width, height, random);
  mirrored_ = view.mirrored;
  if (transform.leave_flip) view.mirrored = false;
  return view;
}

std::optional<Pixels> ImageLoader::decode_upright(const Box& box, int reduction, int orientation) {
  if (orientation == 1) return decoder_.decode(box, reduction);
  const int width = (decoder_.width() + reduction - 1) / reduction;
  const int height = (decoder_.height() + reduction - 1) / reduction;
  const auto stored = decoder_.decode(stored_box(orientation, width, height, box), reduction);
  if (!stored) return std::nullopt;
  const size_t stride = static_cast<size_t>(box.width) * 3;
  upright_.resize(std::max(upright_.size(), stride * static_cast<size_t>(box.height)));
  turn_upright(*stored, orientation, box.width, box.height, upright_.data());
  return Pixels{upright_.data(), stride};
}

void ImageLoader::load(Files& files, size_t index, const Transform& transform, Key key,
                       const Fallback& fallback, void* out) {
  const std::string& path = files.path(index);
  laps_.begin(false);
  try {
    show_encoded(path, read(files, index), index, transform, key, fallback, out);
  } catch (Error& error) {
    if (error.file.empty()) error.file = path;
    throw;
  }
}

std::span<const uint8_t> ImageLoader::read(Files& files, size_t index) {
  const auto input = std::exchange(input_, {});
  const bool kept = !files.kept(index).empty();
  const auto bytes = input.empty() ? files.bytes(index, file_) : input;
  read_seconds_ = input.empty() ? laps_.end(kept ? Stage::cache : Stage::read, bytes.size()) : 0;
  if (bytes.empty()) throw Error(ErrorKind::decode, "the file is empty", files.path(index));
  return bytes;
}

void ImageLoader::show_encoded(const std::string& path, std::span<const uint8_t> bytes, size_t index,
                               const Transform& transform, Key key, const Fallback& fallback, void* out) {
  if (show_jpeg(bytes, index, transform, key, out)) return;
  const DecodedImage image = fallback(path, bytes);
  has_planes_ = false;
  decode_seconds_ = laps_.end(Stage::decode, bytes.size());
  pixels_ = int64_t{image.width} * image.height;
  show_decoded(image, index, transform, key, out);
}

bool ImageLoader::show_jpeg(std::span<const uint8_t> bytes, size_t index, const Transform& transform, Key key,
                            void* out) {
  if (!looks_like_jpeg(bytes) || !decoder_.open(bytes)) return false;
  const auto said = exif_orientation(bytes);
  if (!said) return false;
  Random random(key, index);
  const int orientation = *said;
  int width = decoder_.width(), height = decoder_.height();
  check_size(width, height);
  has_planes_ = orientation == 1 && decoder_.has_planes();
  pixels_ = int64_t{width} * height;
  if (sideways(orientation)) std::swap(width, height);
  const View view = draw_view(transform, width, height, random);
  const auto decode = [&](const Box& box, int reduction) {
    const auto pixels = decode_upright(box, reduction, orientation);
    if (pixels) decode_seconds_ = laps_.end(Stage::decode, bytes.size());
    return pixels;
  };
  return render(decode, view, transform, random, transform.fast ? 8 : 1, out);
}

std::optional<PlannedView> ImageLoader::plan(std::span<const uint8_t> bytes, size_t index,
                                             const Transform& transform, Key key) {
  const bool is_whole = bytes.size() > 4 && bytes[bytes.size() - 2] == 0xFF && bytes.back() == 0xD9;
  if (!is_whole || !looks_like_jpeg(bytes) || !decoder_.open(bytes) || !decoder_.is_usual()) {
    return std::nullopt;
  }
  const auto orientation = exif_orientation(bytes);
  if (!orientation) return std::nullopt;
  PlannedView plan{*orientation, decoder_.width(), decoder_.height(), {}};
  if (int64_t{plan.width} * plan.height > kMaxPixels) return std::nullopt;
  if (sideways(plan.orientation)) std::swap(plan.width, plan.height);
  Random random(key, index);
  plan.view = choose_view(transform, plan.width, plan.height, random);
  return plan;
}

void ImageLoader::show(const DecodedImage& image, size_t index, const Transform& transform, Key key,
                       void* out) {
  laps_.begin(false);
  show_decoded(image, index, transform, key, out);
}

void ImageLoader::show_decoded(const DecodedImage& image, size_t index, const Transform& transform, Key key,
                               void* out) {
  Random random(key, index);
  const View view = draw_view(transform, image.width, image.height, random);
  const size_t stride = static_cast<size_t>(image.width) * 3;
  const auto decode = [&](const Box& box, int) {
    return Pixels{image.pixels + static_cast<size_t>(box.y) * stride + static_cast<size_t>(box.x) * 3,
                  stride};
  };
  render(decode, view, transform, random, 1, out);
}

DecodedImage ImageLoader::decode(const std::string& path, std::span<const uint8_t> bytes,
                                 const Fallback& fallback) {
  Measure measure(Stage::decode);
  measure.add_bytes(bytes.size());
  const auto said = exif_orientation(bytes);
  if (!said || !looks_like_jpeg(bytes) || !decoder_.open(bytes)) return fallback(path, bytes);
  const int orientation = *said;
  int width = decoder_.width(), height = decoder_.height();
  check_size(width, height);
  if (sideways(orientation)) std::swap(width, height);
  const auto image = decode_upright({0, 0, width, height}, 1, orientation);
  if (!image) return fallback(path, bytes);
  const size_t stride = static_cast<size_t>(width) * 3;
  auto packed = std::make_shared<std::vector<uint8_t>>(stride * static_cast<size_t>(height));
  for (int y = 0; y < height; ++y) {
    std::memcpy(packed->data() + static_cast<size_t>(y) * stride,
                image->pixels + static_cast<size_t>(y) * image->stride, stride);
  }
  return {packed->data(), width, height, packed};
}

bool ImageLoader::render(const std::function<std::optional<Pixels>(const Box&, int)>& decode,
                         const View& view, const Transform& transform, Random& random, int most_reduction,
                         void* out) {
  Box box = view.box;
  int reduction = 1;
  // If the box is at least twice as large as the view, the inverse DCT may do half of the resizing.
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
  const auto pixels = decode(needed, reduction);
  if (!pixels) return false;
  // The filters count from the corner of the box.
  const ptrdiff_t colors = pixels->plane == 0 ? 3 : 1;
  const uint8_t* corner = pixels->pixels -
                          static_cast<ptrdiff_t>(vertical_.begin()) * static_cast<ptrdiff_t>(pixels->stride) -
                          static_cast<ptrdiff_t>(horizontal_.begin()) * colors;
  const auto resize = [&](const OutputFormat& format, void* to) {
    resizer_.resize(corner, pixels->stride, pixels->plane, vertical_, horizontal_, format, to);
  };
  if (transform.jitter.any()) {
    jittered_.resize(3 * static_cast<size_t>(transform.height) * static_cast<size_t>(transform.width));
    resize(OutputFormat{}, jittered_.data());
    jitter(transform, random, out);
  } else {
    resize(transform.output, out);
  }
  laps_.end(Stage::transform);
  return true;
}

void ImageLoader::jitter(const Transform& transform, Random& random, void* out) {
  const size_t count = jittered_.size() / 3;
  const OutputFormat& format = transform.output;
  if (format.normalise && !format.channels_last) {
    apply_jitter(transform.jitter, random, jittered_.data(), count, format, static_cast<float*>(out));
    return;
  }
  apply_jitter(transform.jitter, random, jittered_.data(), count);
  if (!format.channels_last) {
    std::memcpy(out, jittered_.data(), jittered_.size());
    return;
  }
  for (size_t color = 0; color < 3; ++color) {
    const uint8_t* from = jittered_.data() + color * count;
    if (format.normalise) {
      float* to = static_cast<float*>(out) + color;
      const float scale = format.scale[color], bias = format.bias[color];
      for (size_t i = 0; i < count; ++i) to[i * 3] = static_cast<float>(from[i]) * scale + bias;
    } else {
      uint8_t* to = static_cast<uint8_t*>(out) + color;
      for (size_t i = 0; i < count; ++i) to[i * 3] = from[i];
    }
  }
}

// The lock is never waited for: if another thread held it when the process forked, it stays locked in the
// child.
std::unique_ptr<ImageLoader> IdleLoaders::take() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || idle_.empty()) return std::make_unique<ImageLoader>();
  auto loader = std::move(idle_.back());
  idle_.pop_back();
  return loader;
}

void IdleLoaders::put_back(std::unique_ptr<ImageLoader> loader) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) idle_.push_back(std::move(loader));
}

}  // namespace foreload
