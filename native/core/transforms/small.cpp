#include "small.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace foreload {

namespace {

int middle(int spare) {
  return static_cast<int>(std::nearbyint(spare / 2.0));
}

void cover(uint8_t* planes, const SmallTransform& transform, int y, int x) {
  const int side = transform.cutout;
  const int top = std::clamp(y - side / 2, 0, transform.height);
  const int bottom = std::clamp(y - side / 2 + side, 0, transform.height);
  const int left = std::clamp(x - side / 2, 0, transform.width);
  const int right = std::clamp(x - side / 2 + side, 0, transform.width);
  for (int color = 0; color < 3; ++color) {
    for (int row = top; row < bottom; ++row) {
      const size_t at =
          (static_cast<size_t>(color) * static_cast<size_t>(transform.height) + static_cast<size_t>(row)) *
              static_cast<size_t>(transform.width) +
          static_cast<size_t>(left);
      std::memset(planes + at, transform.cover[color], static_cast<size_t>(right - left));
    }
  }
}

}  // namespace

void SmallImages::show(const SmallImage& image, const SmallTransform& transform, Random& random, void* out) {
  const int spare_rows = image.height + 2 * transform.padding - transform.height;
  const int spare_columns = image.width + 2 * transform.padding - transform.width;
  int top = middle(spare_rows), left = middle(spare_columns);
  if (transform.random) {
    top = static_cast<int>(random.below(static_cast<uint32_t>(spare_rows + 1)));
    left = static_cast<int>(random.below(static_cast<uint32_t>(spare_columns + 1)));
  }
  const bool mirrored = transform.flip > 0 && random.uniform() < transform.flip;
  const size_t count = static_cast<size_t>(transform.height) * static_cast<size_t>(transform.width);
  planes_.resize(3 * count);
  crop(image, transform, top - transform.padding, left - transform.padding, mirrored);
  int y = 0, x = 0;
  if (transform.cutout > 0) {
    y = static_cast<int>(random.below(static_cast<uint32_t>(transform.height)));
    x = static_cast<int>(random.below(static_cast<uint32_t>(transform.width)));
  }
  if (transform.jitter.any()) apply_jitter(transform.jitter, random, planes_.data(), count);
  if (transform.cutout > 0) cover(planes_.data(), transform, y, x);
  write(transform, out);
}

void SmallImages::crop(const SmallImage& image, const SmallTransform& transform, int top, int left,
                       bool mirrored) {
  const int width = transform.width;
  // Columns of the crop in which there is an image.
  const int begin = std::clamp(-left, 0, width), end = std::clamp(image.width - left, begin, width);
  // From right to left, the first column of the crop is its last one.
  const int to = mirrored ? width - end : begin;
  const ptrdiff_t first = mirrored ? left + end - 1 : left + begin,
                  step = mirrored ? -image.column : image.column;
  uint8_t* out = planes_.data();
  for (int color = 0; color < 3; ++color) {
    for (int y = 0; y < transform.height; ++y, out += width) {
      if (end - begin < width || top + y < 0 || top + y >= image.height) {
        std::memset(out, 0, static_cast<size_t>(width));
        if (top + y < 0 || top + y >= image.height) continue;
      }
      const uint8_t* from = image.pixels + color * image.color + (top + y) * image.row + first * image.column;
      if (step == 1) {
        std::memcpy(out + to, from, static_cast<size_t>(end - begin));
      } else {
        for (int x = 0; x < end - begin; ++x) out[to + x] = from[x * step];
      }
    }
  }
}

void SmallImages::write(const SmallTransform& transform, void* out) {
  const size_t count = static_cast<size_t>(transform.height) * static_cast<size_t>(transform.width);
  const uint8_t* bytes = planes_.data();
  if (transform.output.channels_last) {
    pixels_.resize(3 * count);
    uint8_t* const to = transform.output.normalise ? pixels_.data() : static_cast<uint8_t*>(out);
    for (size_t i = 0; i < count; ++i) {
      for (size_t color = 0; color < 3; ++color) to[3 * i + color] = bytes[color * count + i];
    }
    bytes = to;
  }
  if (transform.output.normalise) {
    resizer_.normalise(bytes, static_cast<size_t>(transform.height), static_cast<size_t>(transform.width),
                       transform.output, static_cast<float*>(out));
  } else if (!transform.output.channels_last) {
    std::memcpy(out, bytes, 3 * count);
  }
}

}  // namespace foreload
