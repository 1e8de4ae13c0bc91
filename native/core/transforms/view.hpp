// The view that a transform takes of an image: which box of it, at which size, mirrored or not.
#pragma once

#include "jitter.hpp"
#include "jpeg.hpp"
#include "random.hpp"
#include "resize.hpp"

namespace foreload {

enum class Crop {
  none,    // the whole image, resized to height x width
  center,  // the shorter side resized to `shorter`, then the middle height x width
  random,  // a box of random area and shape (Szegedy et al., 2015), resized to height x width
};

struct Transform {
  Crop crop = Crop::none;
  int height = 224, width = 224;
  int shorter = 256;
  double scale[2] = {0.08, 1.0};
  double ratio[2] = {3.0 / 4.0, 4.0 / 3.0};
  double flip = 0;
  bool leave_flip = false;  // flips are drawn, but left to others: images are written as they are
  bool fast = false;
  Jitter jitter;
  OutputFormat output;

  // The bytes of one image in the batch.
  size_t sample_bytes() const {
    const size_t values = static_cast<size_t>(height) * static_cast<size_t>(width) * 3;
    return values * (output.normalise ? sizeof(float) : 1);
  }
};

struct View {
  Box box;                              // of the upright image
  int full_height = 0, full_width = 0;  // the size that the box is resized to
  int top = 0, left = 0;                // where the output's height x width begins in that
  bool mirrored = false;
};

// Whether a transform makes the same of an image in every epoch.
bool is_fixed(const Transform& transform);

// What the bytes of an image depend on that a fixed transform makes, before they are normalised.
struct Shape {
  Crop crop = Crop::none;
  int height = 0, width = 0, shorter = 0;
  bool fast = false, channels_last = false;

  bool operator==(const Shape&) const = default;
};
Shape shape_of(const Transform& transform);

// Draws the view of a sample. The draws are the same, in the same order, for every sample; `random` may be
// used further.
View choose_view(const Transform& transform, int width, int height, Random& random);

}  // namespace foreload
