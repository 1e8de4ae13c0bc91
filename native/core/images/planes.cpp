#include "planes.hpp"

#include <algorithm>

#include "colors.hpp"

namespace foreload {

size_t planes_bytes(int width, int height) {
  const Planes planes{width, height};
  return static_cast<size_t>(width) * static_cast<size_t>(height) +
         2 * static_cast<size_t>(planes.colour_width()) * static_cast<size_t>(planes.colour_height());
}

Planes planes_in(const uint8_t* memory, int width, int height) {
  Planes planes{width, height, memory};
  planes.cb = memory + static_cast<size_t>(width) * static_cast<size_t>(height);
  planes.cr =
      planes.cb + static_cast<size_t>(planes.colour_width()) * static_cast<size_t>(planes.colour_height());
  return planes;
}

Pixels PlanesToRgb::convert_to_planes(const Planes& planes, const Box& box) {
  const int across = planes.colour_width();
  const int first = box.x / 2, last = (box.x + box.width - 1) / 2;
  const auto count = static_cast<size_t>(last - first + 1), plane = (2 * count + 63) / 64 * 64;
  const size_t stride = 3 * plane, left = static_cast<size_t>(box.x % 2);
  // (Who reads up to a multiple of 64 pixels from any one on may go so far beyond the end.)
  pixels_.resize(std::max(pixels_.size(), stride * static_cast<size_t>(box.height) + 64));
  for (int y = 0; y < box.height; ++y) {
    const uint8_t* const luma =
        planes.y + static_cast<size_t>(box.y + y) * static_cast<size_t>(planes.width) + 2 * first;
    uint8_t* const out = pixels_.data() + static_cast<size_t>(y) * stride;
    // libjpeg-turbo repeats colours if there are too few columns to interpolate: each is alone then.
    const size_t together = across > 2 ? count : 1;
    for (size_t i = 0; i < count; i += together) {
      mix(planes, planes.cb, box.y + y, first + static_cast<int>(i), together, blue_);
      mix(planes, planes.cr, box.y + y, first + static_cast<int>(i), together, red_);
      color_kernels().to_planes(luma + 2 * i, blue_.data() + 1, red_.data() + 1, together, out + 2 * i,
                                plane);
    }
  }
  return {pixels_.data() + left, stride, plane};
}

void PlanesToRgb::mix(const Planes& planes, const uint8_t* colour, int y, int first, size_t count,
                      std::vector<uint16_t>& sums) {
  const int across = planes.colour_width(), down = planes.colour_height(), row = y / 2;
  const int other = across > 2 ? std::clamp(y % 2 == 0 ? row - 1 : row + 1, 0, down - 1) : row;
  const uint8_t* const near = colour + static_cast<size_t>(row) * static_cast<size_t>(across);
  const uint8_t* const far = colour + static_cast<size_t>(other) * static_cast<size_t>(across);
  sums.resize(std::max(sums.size(), count + 2));
  const int last = first + static_cast<int>(count) - 1;
  const bool has_neighbours = across > 2;
  const int begin = has_neighbours ? std::max(first - 1, 0) : first;
  const int end = has_neighbours ? std::min(last + 2, across) : last + 1;
  color_kernels().mix(near + begin, far + begin, static_cast<size_t>(end - begin),
                      sums.data() + (begin - (first - 1)));
  // Beyond the edges the outermost column is repeated.
  if (begin == first) sums[0] = sums[1];
  if (end == last + 1) sums[count + 1] = sums[count];
}

Pixels PlanesToRgb::convert(const Planes& planes, const Box& box) {
  const Pixels apart = convert_to_planes(planes, box);
  const auto width = static_cast<size_t>(box.width), stride = (3 * width + 63) / 64 * 64;
  packed_.resize(std::max(packed_.size(), stride * static_cast<size_t>(box.height)));
  for (size_t y = 0; y < static_cast<size_t>(box.height); ++y) {
    color_kernels().pack(apart.pixels + y * apart.stride, apart.plane, width, packed_.data() + y * stride);
  }
  return {packed_.data(), stride};
}

}  // namespace foreload
