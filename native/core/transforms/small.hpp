// Training on small images that lie in memory: padded, cropped, mirrored, covered in part, coloured,
// normalised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jitter.hpp"
#include "random.hpp"
#include "resize.hpp"

namespace foreload {

struct SmallTransform {
  bool random = true;  // where the crop is; otherwise it is in the middle
  int height = 32, width = 32;
  int padding = 0;  // black pixels on each side
  double flip = 0;
  int cutout = 0;         // the side of the square that is covered; 0: none
  uint8_t cover[3] = {};  // its colour
  Jitter jitter;
  OutputFormat output;

  // The bytes of one image in the batch.
  size_t sample_bytes() const {
    const size_t values = static_cast<size_t>(height) * static_cast<size_t>(width) * 3;
    return values * (output.normalise ? sizeof(float) : 1);
  }
  // Whether the crop fits into images of this size, with their padding.
  bool fits(int image_height, int image_width) const {
    return image_height + 2 * padding >= height && image_width + 2 * padding >= width;
  }
};

// Colour c of pixel (x, y) is at pixels + c * color + y * row + x * column.
struct SmallImage {
  const uint8_t* pixels = nullptr;
  ptrdiff_t color = 0, row = 0, column = 0;
  int height = 0, width = 0;
};

// Used by one thread at a time; it keeps its buffers from image to image.
class SmallImages {
 public:
  // Writes what the transform makes of an image that it fits. The draws are the same, in the same order, for
  // images of one size.
  void show(const SmallImage& image, const SmallTransform& transform, Random& random, void* out);

 private:
  // Writes the crop as three planes, with black where there is no image.
  void crop(const SmallImage& image, const SmallTransform& transform, int top, int left, bool mirrored);
  void write(const SmallTransform& transform, void* out);

  Resizer resizer_;
  std::vector<uint8_t> planes_, pixels_;
};

}  // namespace foreload
