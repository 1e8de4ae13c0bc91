// Resizing is Pillow's filter in double precision, rounded.
#include <algorithm>
#include <cmath>
#include <vector>

#include "check.hpp"
#include "jpegs.hpp"
#include "resize.hpp"

using foreload::Filter;

namespace {

// What one output of an axis is, in double precision.
std::vector<double> exact_axis(const std::vector<double>& in, int full) {
  const int size = static_cast<int>(in.size());
  const double scale = static_cast<double>(size) / full, reduction = std::max(1.0, scale);
  std::vector<double> out(static_cast<size_t>(full));
  for (int o = 0; o < full; ++o) {
    const double center = (o + 0.5) * scale;
    double sum = 0, total = 0;
    for (int x = 0; x < size; ++x) {
      const double weight = std::max(0.0, 1 - std::abs(x + 0.5 - center) / reduction);
      sum += weight * in[static_cast<size_t>(x)];
      total += weight;
    }
    out[static_cast<size_t>(o)] = sum / total;
  }
  return out;
}

// The same of an image whose colours are in planes of their own.
std::vector<uint8_t> resized_planes(const jpegs::Bytes& image, int width, int height, const Filter& vertical,
                                    const Filter& horizontal, const foreload::OutputFormat& format) {
  const size_t plane = (static_cast<size_t>(width) + 63) / 64 * 64, stride = 3 * plane;
  jpegs::Bytes planes(stride * static_cast<size_t>(height), 77);
  for (size_t i = 0; i < image.size(); ++i) {
    const size_t pixel = i / 3, columns = static_cast<size_t>(width);
    planes[pixel / columns * stride + i % 3 * plane + pixel % columns] = image[i];
  }
  std::vector<uint8_t> out(3 * static_cast<size_t>(vertical.count()) *
                           static_cast<size_t>(horizontal.count()));
  foreload::Resizer().resize(planes.data(), stride, plane, vertical, horizontal, format, out.data());
  return out;
}

void check(int width, int height, int out_width, int out_height, bool mirrored, bool last) {
  const auto image = jpegs::pixels(width, height, 3, 4);
  Filter vertical, horizontal;
  vertical.plan(height, out_height, 0, out_height, false);
  horizontal.plan(width, out_width, 0, out_width, mirrored);
  foreload::Resizer resizer;
  foreload::OutputFormat format;
  format.channels_last = last;
  const size_t area = static_cast<size_t>(out_width) * static_cast<size_t>(out_height);
  std::vector<uint8_t> out(3 * area);
  resizer.resize(image.data(), static_cast<size_t>(width) * 3, 0, vertical, horizontal, format, out.data());
  CHECK(out == resized_planes(image, width, height, vertical, horizontal, format));
  for (int c = 0; c < 3; ++c) {
    std::vector<std::vector<double>> rows;
    for (int y = 0; y < height; ++y) {
      std::vector<double> row;
      for (int x = 0; x < width; ++x) row.push_back(image[static_cast<size_t>((y * width + x) * 3 + c)]);
      rows.push_back(exact_axis(row, out_width));
    }
    for (int x = 0; x < out_width; ++x) {
      std::vector<double> column;
      for (const auto& row : rows) column.push_back(row[static_cast<size_t>(x)]);
      const auto exact = exact_axis(column, out_height);
      for (int y = 0; y < out_height; ++y) {
        const int column_out = mirrored ? out_width - 1 - x : x;
        const size_t at = static_cast<size_t>(y * out_width + column_out);
        const double value =
            last ? out[at * 3 + static_cast<size_t>(c)] : out[static_cast<size_t>(c) * area + at];
        CHECK(std::abs(value - exact[static_cast<size_t>(y)]) <= 1.1);
      }
    }
  }
}

}  // namespace

int main() {
  for (const bool mirrored : {false, true}) {
    for (const bool last : {false, true}) {
      check(60, 40, 32, 32, mirrored, last);
      check(20, 33, 48, 17, mirrored, last);
      check(1, 1, 5, 7, mirrored, last);
      check(97, 3, 1, 1, mirrored, last);
      check(400, 9, 7, 9, mirrored, last);
    }
  }
  // A window of a larger result is that part of it, and needs only its own inputs.
  Filter whole, window;
  whole.plan(500, 256, 0, 256, false);
  window.plan(500, 256, 16, 224, false);
  CHECK(window.begin() > 0 && window.end() < 500);
  for (int o = 0; o < 224; ++o) {
    CHECK(window.first(o) == whole.first(o + 16) && window.taps(o) == whole.taps(o + 16));
    for (int k = 0; k < window.taps(o); ++k) CHECK(window.weights(o)[k] == whole.weights(o + 16)[k]);
  }
}
