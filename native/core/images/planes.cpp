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

template <typename Write>
void PlanesToRgb::for_rows(const Planes& planes, const Box& box, const Write& write) {
  const ColorKernels& kernels = color_kernels();
  const int across = planes.colour_width(), down = planes.colour_height();
  // libjpeg-turbo repeats colours if there are too few columns to interpolate.
  const bool smooth = across > 2;
  const int first = box.x / 2, last = (box.x + box.width - 1) / 2;
  const auto count = static_cast<size_t>(last - first + 1);
  // Kernels need no code for what is left over if they may go on to the next multiple.
  const size_t padded = (count + 31) / 32 * 32;
  sums_.resize(padded + 2);
  blue_.resize(2 * padded);
  red_.resize(2 * padded);
  const auto spread = [&](const uint8_t* plane, int row, bool upper, uint8_t* out) {
    const uint8_t* near = plane + static_cast<size_t>(row) * static_cast<size_t>(across);
    if (!smooth) {
      for (size_t i = 0; i < count; ++i) out[2 * i] = out[2 * i + 1] = near[static_cast<size_t>(first) + i];
      return;
    }
    const int other = std::clamp(upper ? row - 1 : row + 1, 0, down - 1);
    const uint8_t* far = plane + static_cast<size_t>(other) * static_cast<size_t>(across);
    // Beyond the edges the outermost column is repeated.
    const int begin = std::max(first - 1, 0), end = std::min(last + 2, across);
    uint16_t* const sums = sums_.data() + (begin - (first - 1));
    kernels.mix(near + begin, far + begin, static_cast<size_t>(end - begin), sums);
    if (first == 0) sums_[0] = sums_[1];
    if (last == across - 1) sums_[count + 1] = sums_[count];
    kernels.spread(sums_.data() + 1, padded, out);
  };
  for (int y = box.y; y < box.y + box.height; ++y) {
    spread(planes.cb, y / 2, y % 2 == 0, blue_.data());
    spread(planes.cr, y / 2, y % 2 == 0, red_.data());
    const size_t skipped = static_cast<size_t>(box.x % 2);
    const uint8_t* const luma = planes.y + static_cast<size_t>(y) * static_cast<size_t>(planes.width) + box.x;
    write(luma, blue_.data() + skipped, red_.data() + skipped, static_cast<size_t>(y - box.y));
  }
}

Pixels PlanesToRgb::convert(const Planes& planes, const Box& box) {
  const auto width = static_cast<size_t>(box.width), stride = (3 * width + 63) / 64 * 64;
  pixels_.resize(std::max(pixels_.size(), stride * static_cast<size_t>(box.height)));
  for_rows(planes, box, [&](const uint8_t* luma, const uint8_t* blue, const uint8_t* red, size_t y) {
    color_kernels().to_rgb(luma, blue, red, width, pixels_.data() + y * stride);
  });
  return {pixels_.data(), stride};
}

Pixels PlanesToRgb::convert_to_planes(const Planes& planes, const Box& box) {
  const auto width = static_cast<size_t>(box.width), plane = (width + 63) / 64 * 64, stride = 3 * plane;
  pixels_.resize(std::max(pixels_.size(), stride * static_cast<size_t>(box.height)));
  for_rows(planes, box, [&](const uint8_t* luma, const uint8_t* blue, const uint8_t* red, size_t y) {
    color_kernels().to_planes(luma, blue, red, width, pixels_.data() + y * stride, plane);
  });
  return {pixels_.data(), stride, plane};
}

}  // namespace foreload
