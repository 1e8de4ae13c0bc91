#include "resize.hpp"

#include <algorithm>
#include <cmath>

#include "rows.hpp"

namespace foreload {

namespace {

template <typename T>
T* at_least(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
  return buffer.data();
}

}  // namespace

void Filter::plan(int input, int full, int start, int count, bool mirrored) {
  const double scale = static_cast<double>(input) / full;
  const double reduction = std::max(scale, 1.0);
  const double support = reduction;
  width_ = static_cast<size_t>(std::ceil(support)) * 2 + 1;
  first_.resize(static_cast<size_t>(count));
  taps_.resize(static_cast<size_t>(count));
  weights_.assign(static_cast<size_t>(count) * width_, 0);
  begin_ = input;
  end_ = 0;
  std::vector<double> exact(width_);
  for (int i = 0; i < count; ++i) {
    const size_t output = static_cast<size_t>(mirrored ? count - 1 - i : i);
    const double center = (start + i + 0.5) * scale;
    int first = std::max(0, static_cast<int>(center - support + 0.5));
    int last = std::min(input, static_cast<int>(center + support + 0.5));
    double total = 0;
    for (int x = first; x < last; ++x) {
      const double weight = std::max(0.0, 1.0 - std::abs((x - center + 0.5) / reduction));
      exact[static_cast<size_t>(x - first)] = weight;
      total += weight;
    }
    uint16_t* weights = &weights_[output * width_];
    // Rounding errors are carried along, so that the integers sum to 65536 as the exact weights sum to 1.
    double sum = 0;
    long given = 0;
    for (int x = first; x < last; ++x) {
      sum += exact[static_cast<size_t>(x - first)] / total * 65536.0;
      const long upto = static_cast<long>(sum + 0.5);
      weights[x - first] = static_cast<uint16_t>(std::min(upto - given, 65535L));
      given = upto;
    }
    while (last - first > 1 && weights[last - first - 1] == 0) --last;
    int skipped = 0;
    while (last - first - skipped > 1 && weights[skipped] == 0) ++skipped;
    if (skipped > 0) {
      std::copy(weights + skipped, weights + (last - first), weights);
      first += skipped;
    }
    first_[output] = first;
    taps_[output] = last - first;
    begin_ = std::min(begin_, first);
    end_ = std::max(end_, last);
  }
}

// Two blends of whole rows with a transpose after each: no step handles pixels one by one.
//   pixels [y][x c] -> blend -> [out y][x c] -> transpose -> [x c][out y] -> blend -> [out x c][out y] -> out
// Planes are blended and transposed one by one, to the same.
void Resizer::resize(const uint8_t* pixels, size_t stride, size_t plane, const Filter& vertical,
                     const Filter& horizontal, const OutputFormat& format, void* out) {
  const RowKernels& kernels = row_kernels();
  const size_t height = static_cast<size_t>(vertical.count());
  const size_t width = static_cast<size_t>(horizontal.count());
  const size_t parts = plane == 0 ? 1 : 3, colors = 3 / parts;
  const size_t left = static_cast<size_t>(horizontal.begin()) * colors;
  const size_t used = static_cast<size_t>(horizontal.end()) * colors - left;

  constexpr size_t kRows = 32;
  const size_t pitch = (height + 63) / 64 * 64;
  const size_t blended_pitch = (used + 63) / 64 * 64;
  // Kernels need no code for what is left over if they may go on to the next multiple.
  const size_t blended_count = parts == 1 ? used : blended_pitch;
  uint8_t* blended = at_least(blended_, kRows * blended_pitch);
  uint8_t* turned = at_least(turned_, parts * used * pitch);
  for (size_t y = 0; y < height; y += kRows) {
    const size_t rows = std::min(kRows, height - y);
    for (size_t part = 0; part < parts; ++part) {
      const uint8_t* const from = pixels + part * plane + left;
      for (size_t i = 0; i < rows; ++i) {
        const int o = static_cast<int>(y + i);
        kernels.blend(from + static_cast<size_t>(vertical.first(o)) * stride, stride, vertical.weights(o),
                      vertical.taps(o), blended_count, blended + i * blended_pitch);
      }
      kernels.transpose(blended, blended_pitch, rows, used, turned + part * pitch + y, parts * pitch);
    }
  }

  const size_t column = 3 * pitch;
  uint8_t* columns = at_least(columns_, width * column);
  for (size_t x = 0; x < width; ++x) {
    const int o = static_cast<int>(x);
    const size_t first = static_cast<size_t>(horizontal.first(o) - horizontal.begin());
    kernels.blend(turned + first * column, column, horizontal.weights(o), horizontal.taps(o), column,
                  columns + x * column);
  }

  // Channels-last is one matrix of (x, c) rows; planes are three matrices of x rows.
  const size_t matrices = format.channels_last ? 1 : 3;
  const size_t rows = width * 3 / matrices;
  const size_t row_pitch = column * matrices / 3;
  // Floats that are written row by row, in a pass of their own, come faster than transposed ones.
  uint8_t* const bytes = format.normalise ? at_least(bytes_, 3 * height * width) : static_cast<uint8_t*>(out);
  for (size_t k = 0; k < matrices; ++k) {
    kernels.transpose(columns + k * pitch, row_pitch, rows, height, bytes + k * height * width, rows);
  }
  if (format.normalise) normalise(bytes, height, width, format, static_cast<float*>(out));
}

void Resizer::prepare(const OutputFormat& format, size_t plane) {
  float* scale = at_least(scale_, kPeriod);
  float* bias = at_least(bias_, kPeriod);
  for (size_t i = 0; i < kPeriod; ++i) {
    const size_t color = format.channels_last ? i % 3 : plane;
    scale[i] = format.scale[color];
    bias[i] = format.bias[color];
  }
}

void Resizer::normalise(const uint8_t* bytes, size_t height, size_t width, const OutputFormat& format,
                        float* out) {
  const size_t planes = format.channels_last ? 1 : 3;
  const size_t count = height * width * 3 / planes;
  for (size_t plane = 0; plane < planes; ++plane, bytes += count, out += count) {
    prepare(format, plane);
    row_kernels().normalise(bytes, count, scale_.data(), bias_.data(), out);
  }
}

}  // namespace foreload
