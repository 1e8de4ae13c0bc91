#include "view.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "error.hpp"

namespace foreload {

namespace {

// Tries ten boxes of random area and shape; then takes the largest box in the middle that the shapes allow.
Box random_box(const Transform& transform, int width, int height, Random& random) {
  const double area = static_cast<double>(width) * height;
  const double low = std::log(transform.ratio[0]), high = std::log(transform.ratio[1]);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(transform.scale[0], transform.scale[1]);
    const double aspect = std::exp(random.uniform(low, high));
    const double w = std::nearbyint(std::sqrt(target * aspect));
    const double h = std::nearbyint(std::sqrt(target / aspect));
    if (w >= 1 && w <= width && h >= 1 && h <= height) {
      const int y = static_cast<int>(random.below(static_cast<uint32_t>(height - static_cast<int>(h) + 1)));
      const int x = static_cast<int>(random.below(static_cast<uint32_t>(width - static_cast<int>(w) + 1)));
      return {x, y, static_cast<int>(w), static_cast<int>(h)};
    }
  }
  const double shape = static_cast<double>(width) / height;
  int w = width, h = height;
  if (shape < transform.ratio[0]) h = static_cast<int>(std::nearbyint(w / transform.ratio[0]));
  if (shape > transform.ratio[1]) w = static_cast<int>(std::nearbyint(h * transform.ratio[1]));
  w = std::clamp(w, 1, width);
  h = std::clamp(h, 1, height);
  return {(width - w) / 2, (height - h) / 2, w, h};
}

}  // namespace

bool is_fixed(const Transform& transform) {
  return transform.crop != Crop::random && transform.flip == 0 && !transform.jitter.any();
}

Shape shape_of(const Transform& transform) {
  return {transform.crop,  transform.height,
          transform.width, transform.crop == Crop::center ? transform.shorter : 0,
          transform.fast,  transform.output.channels_last};
}

View choose_view(const Transform& transform, int width, int height, Random& random) {
  View view{{0, 0, width, height}, transform.height, transform.width, 0, 0, false};
  if (transform.crop == Crop::random) view.box = random_box(transform, width, height, random);
  if (transform.crop == Crop::center) {
    const int shorter = std::min(width, height);
    const auto scaled = [&](int side) {
      const int64_t length = static_cast<int64_t>(transform.shorter) * side / shorter;
      if (length <= std::numeric_limits<int>::max()) return static_cast<int>(length);
      throw Error(ErrorKind::decode, std::to_string(width) + " x " + std::to_string(height) +
                                         " pixels cannot be resized to a shorter side of " +
                                         std::to_string(transform.shorter));
    };
    view.full_width = scaled(width);
    view.full_height = scaled(height);
    view.top = static_cast<int>(std::nearbyint((view.full_height - transform.height) / 2.0));
    view.left = static_cast<int>(std::nearbyint((view.full_width - transform.width) / 2.0));
  }
  if (transform.flip > 0) view.mirrored = random.uniform() < transform.flip;
  return view;
}

}  // namespace foreload
