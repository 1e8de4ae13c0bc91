// Antialiased resizing of a crop: Pillow's triangle filter, whose support grows with the reduction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace foreload {

// The inputs that the outputs of an axis blend: output o blends first[o] ... first[o] + taps[o] - 1.
class Filter {
 public:
  // Plans to resize `input` pixels to `full` outputs, of which `count` from `start` on are made, last to
  // first if `mirrored`.
  void plan(int input, int full, int start, int count, bool mirrored);

  int count() const { return static_cast<int>(first_.size()); }
  int first(int output) const { return first_[static_cast<size_t>(output)]; }
  int taps(int output) const { return taps_[static_cast<size_t>(output)]; }
  const uint16_t* weights(int output) const { return &weights_[static_cast<size_t>(output) * width_]; }
  // The inputs that any output needs: [begin, end).
  int begin() const { return begin_; }
  int end() const { return end_; }

 private:
  std::vector<int> first_, taps_;
  std::vector<uint16_t> weights_;
  size_t width_ = 0;
  int begin_ = 0, end_ = 0;
};

// How pixels are written to the batch: value * scale + bias per colour, or the bytes as they are.
struct OutputFormat {
  bool channels_last = false;
  bool normalise = false;
  float scale[3] = {1, 1, 1};
  float bias[3] = {0, 0, 0};
};

// Keeps its buffers between calls, so that a steady stream of images touches no new memory.
class Resizer {
 public:
  // `pixels` points at the RGB pixel (0, 0) of the axes that the filters were planned for; only the rows and
  // columns in [begin, end) of the filters are read. Its colours lie in turn, or `plane` bytes apart (columns
  // are then read, but not used, up to a multiple of 64 from `begin` on). `out` receives uint8 or float32
  // (format.normalise), 3 x height x width or height x width x 3 (format.channels_last).
  void resize(const uint8_t* pixels, size_t stride, size_t plane, const Filter& vertical,
              const Filter& horizontal, const OutputFormat& format, void* out);

  // Normalises what resize() made as bytes of the same format: the same floats as it would have made at once.
  void normalise(const uint8_t* bytes, size_t height, size_t width, const OutputFormat& format, float* out);

 private:
  // Sets scale_ and bias_: those of one plane, or of the colours in turn.
  void prepare(const OutputFormat& format, size_t plane);

  std::vector<uint8_t> blended_, turned_, columns_, bytes_;
  std::vector<float> scale_, bias_;
};

}  // namespace foreload
