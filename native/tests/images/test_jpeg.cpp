// A box decodes to the same pixels as the whole picture does.
#include <cstring>
#include <initializer_list>

#include "check.hpp"
#include "jpeg.hpp"
#include "jpegs.hpp"
#include "orientation.hpp"

using foreload::Box;
using foreload::JpegDecoder;

namespace {

std::mt19937 random_bits(5);

int below(int count) {
  return static_cast<int>(random_bits() % static_cast<unsigned>(count));
}

// One decoder for all, as in a worker: nothing of a picture may stay for the next.
JpegDecoder decoder;

void check_boxes(const jpegs::Kind& kind, int full_width, int full_height, int boxes, int reduction = 1) {
  const auto jpeg = jpegs::encode(full_width, full_height, kind, random_bits());
  const auto whole = jpegs::decode(jpeg, reduction);
  const int width = (full_width + reduction - 1) / reduction;
  const int height = (full_height + reduction - 1) / reduction;
  for (int i = 0; i < boxes; ++i) {
    Box box{0, 0, width, height};
    if (i > 0) {
      box.x = below(width);
      box.y = below(height);
      box.width = 1 + below(width - box.x);
      box.height = 1 + below(height - box.y);
      // Boxes that touch an edge, and single rows and columns.
      if (below(4) == 0) box.width = width - box.x;
      if (below(4) == 0) box.height = height - box.y;
      if (below(8) == 0) box.width = 1;
      if (below(8) == 0) box.height = 1;
    }
    CHECK(decoder.open(jpeg));
    CHECK(decoder.width() == full_width && decoder.height() == full_height);
    const auto pixels = decoder.decode(box, reduction);
    CHECK(pixels.has_value());
    for (int y = 0; y < box.height; ++y) {
      const size_t from = static_cast<size_t>((box.y + y) * width + box.x) * 3;
      CHECK(std::memcmp(pixels->pixels + static_cast<size_t>(y) * pixels->stride, whole.data() + from,
                        static_cast<size_t>(box.width) * 3) == 0);
    }
  }
}

// Any sampling, size, quality and coding that an encoder may choose.
void check_any() {
  jpegs::Kind kind;
  do {
    kind.horizontal = 1 + below(4);
    kind.vertical = 1 + below(4);
  } while (kind.horizontal * kind.vertical > 8);
  kind.progressive = below(2) == 0;
  kind.script = below(3) == 0 ? 0 : random_bits();
  kind.grey = below(6) == 0;
  kind.restart = below(3) == 0 ? 1 + below(20) : 0;
  kind.quality = 1 + below(100);
  kind.optimise = below(2) == 0;
  kind.noise = below(3) == 0;
  check_boxes(kind, 1 + below(120), 1 + below(120), 8, below(3) ? 1 : 1 << below(4));
}

// The file without the segments of one marker.
jpegs::Bytes without(const jpegs::Bytes& jpeg, uint8_t marker) {
  jpegs::Bytes out(jpeg.begin(), jpeg.begin() + 2);
  auto at = jpeg.begin() + 2;
  for (; at[1] != 0xDA; at += 2 + (at[2] << 8 | at[3])) {
    if (at[1] != marker) out.insert(out.end(), at, at + 2 + (at[2] << 8 | at[3]));
  }
  out.insert(out.end(), at, jpeg.end());
  return out;
}

// A picture that lacks tables gets the standard ones or is an error, whatever was decoded before it.
void check_borrowed_tables() {
  const auto jpeg = jpegs::encode(40, 30, {});
  const auto other = jpegs::encode(40, 30, {.quality = 20, .optimise = true, .noise = true});
  const auto whole = jpegs::decode(jpeg);
  CHECK(decoder.open(other));
  decoder.decode({0, 0, 40, 30}, 1);
  const auto bare = without(jpeg, 0xDB);
  CHECK(decoder.open(bare));
  CHECK(!decoder.decode({0, 0, 40, 30}, 1));
  const auto standard = without(jpeg, 0xC4);
  CHECK(decoder.open(other));
  decoder.decode({0, 0, 40, 30}, 1);
  CHECK(decoder.open(standard));
  const auto pixels = decoder.decode({0, 0, 40, 30}, 1);
  CHECK(pixels.has_value());
  for (size_t y = 0; y < 30; ++y) {
    CHECK(std::memcmp(pixels->pixels + y * pixels->stride, whole.data() + y * 120, 120) == 0);
  }
}

// What Pillow passes over before the Exif block hides no orientation; what it refuses is left to it.
void check_orientation_behind_marks() {
  const auto behind = [](std::initializer_list<uint8_t> bytes) {
    auto jpeg = jpegs::encode(20, 20, {.orientation = 6});
    jpeg.insert(jpeg.begin() + 2, bytes);
    return foreload::exif_orientation(jpeg);
  };
  for (const uint8_t restart : {0xD0, 0xD7}) CHECK(behind({0xFF, restart}) == 6);
  CHECK(behind({0xFF, 0xFF, 0xFF}) == 6);
  CHECK(behind({0xFF, 0xD1, 0xFF, 0xFF, 0xD2}) == 6);
  CHECK(behind({0xFF, 0x00, 0x12}) == 6);
  CHECK(behind({0xFF, 0xFE, 0, 3, 0xFF}) == 6);  // a comment
  CHECK(!behind({0xFF, 0x01}));
  CHECK(!behind({0xFF, 0xFE, 0, 1}));
}

}  // namespace

// test_jpeg [PICTURES]
int main(int count, char** arguments) {
  for (const auto& kind : jpegs::kinds()) {
    check_boxes(kind, 100, 75, 60);
    check_boxes(kind, 33, 64, 60);
    check_boxes(kind, 7, 5, 60);
  }
  check_borrowed_tables();
  for (int i = count > 1 ? std::atoi(arguments[1]) : 300; i > 0; --i) check_any();

  auto jpeg = jpegs::encode(100, 75, {});
  const Box top{0, 0, 20, 5};

  CHECK(!decoder.open(jpegs::encode(20, 20, {.cmyk = true})));
  CHECK(foreload::exif_orientation(jpeg) == 1);
  CHECK(foreload::exif_orientation(jpegs::encode(20, 20, {.orientation = 6})) == 6);
  check_orientation_behind_marks();

  // Cut anywhere in its picture, a file is not sound, even if the box lies before the cut.
  for (size_t size = jpeg.size() - 10; size > jpeg.size() / 2; size -= 97) {
    const jpegs::Bytes cut(jpeg.begin(), jpeg.begin() + static_cast<ptrdiff_t>(size));
    CHECK(decoder.open(cut));
    CHECK(!decoder.decode(top, 1));
  }
  // A picture that is whole needs its end marker, as for Pillow, and may be followed by anything.
  const jpegs::Bytes endless(jpeg.begin(), jpeg.end() - 2);
  CHECK(decoder.open(endless));
  CHECK(!decoder.decode(top, 1));
  jpeg.insert(jpeg.end(), 1000, 0xAB);
  CHECK(decoder.open(jpeg));
  CHECK(decoder.decode(top, 1));

  const jpegs::Bytes text{'h', 'e', 'l', 'l', 'o'};
  CHECK(!decoder.open(text));
  CHECK(!decoder.open(jpegs::Bytes{0xFF, 0xD8, 0xFF}));
  CHECK(decoder.open(jpeg));
}
