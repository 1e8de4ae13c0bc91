// Random crops lie inside the image, with the areas and shapes that were set.
#include <cmath>

#include "check.hpp"
#include "error.hpp"
#include "view.hpp"

using namespace foreload;

int main() {
  Transform transform;
  transform.crop = Crop::random;
  transform.flip = 0.5;
  int mirrored = 0;
  double area = 0;
  for (uint64_t index = 0; index < 20000; ++index) {
    Random random({1, 0}, index);
    const View view = choose_view(transform, 500, 375, random);
    CHECK(view.box.x >= 0 && view.box.y >= 0 && view.box.width >= 1 && view.box.height >= 1);
    CHECK(view.box.x + view.box.width <= 500 && view.box.y + view.box.height <= 375);
    const double ratio = static_cast<double>(view.box.width) / view.box.height;
    CHECK(ratio > 0.73 && ratio < 1.37);
    area += view.box.width * view.box.height / (500.0 * 375.0);
    mirrored += view.mirrored;
  }
  CHECK(mirrored > 9700 && mirrored < 10300);
  CHECK(area / 20000 > 0.35 && area / 20000 < 0.55);  // under 0.54: large boxes often do not fit

  // No box of the wanted shape fits into a line: the largest in the middle is taken.
  Random random({1, 0}, 0);
  const View line = choose_view(transform, 1000, 10, random);
  CHECK(line.box.height == 10 && line.box.width == 13 && line.box.x == 493);

  transform.crop = Crop::center;
  const View center = choose_view(transform, 500, 375, random);
  CHECK(center.full_height == 256 && center.full_width == 341);
  CHECK(center.top == 16 && center.left == 58);
  CHECK_THROWS(choose_view(transform, 1, 16777216, random), decode);

  Transform fixed;
  CHECK(is_fixed(fixed) && !is_fixed(transform));
  Transform other = fixed;
  other.shorter = 300;  // which only a centre crop looks at
  other.output.normalise = true;
  CHECK(shape_of(other) == shape_of(fixed));
  other.crop = fixed.crop = Crop::center;
  CHECK(shape_of(other) != shape_of(fixed));
  other = fixed;
  other.output.channels_last = true;
  CHECK(shape_of(other) != shape_of(fixed));
  fixed.flip = 0.5;
  CHECK(!is_fixed(fixed));
  other.jitter.hue = 0.1F;
  CHECK(!is_fixed(other));
}
