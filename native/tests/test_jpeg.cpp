// A box decodes to the same pixels as the whole picture does.
#include <cstring>

#include "check.hpp"
#include "error.hpp"
#include "jpeg.hpp"
#include "jpegs.hpp"
#include "orientation.hpp"

using foreload::Box;
using foreload::JpegDecoder;

namespace {

void check_boxes(const jpegs::Kind& kind, int width, int height) {
  const auto jpeg = jpegs::encode(width, height, kind);
  const auto whole = jpegs::decode(jpeg);
  JpegDecoder decoder;
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    Box box{0, 0, width, height};
    if (i > 0) {
      box.x = static_cast<int>(random() % static_cast<unsigned>(width));
      box.y = static_cast<int>(random() % static_cast<unsigned>(height));
      box.width = 1 + static_cast<int>(random() % static_cast<unsigned>(width - box.x));
      box.height = 1 + static_cast<int>(random() % static_cast<unsigned>(height - box.y));
    }
    CHECK(decoder.open(jpeg));
    CHECK(decoder.width() == width && decoder.height() == height);
    const auto pixels = decoder.decode(box, 1);
    for (int y = 0; y < box.height; ++y) {
      const size_t from = static_cast<size_t>((box.y + y) * width + box.x) * 3;
      CHECK(std::memcmp(pixels.pixels + static_cast<size_t>(y) * pixels.stride, whole.data() + from,
                        static_cast<size_t>(box.width) * 3) == 0);
    }
  }
}

}  // namespace

int main() {
  for (const auto& kind : jpegs::kinds()) {
    check_boxes(kind, 100, 75);
    check_boxes(kind, 33, 64);
    check_boxes(kind, 7, 5);
  }
  JpegDecoder decoder;
  auto jpeg = jpegs::encode(100, 75, {});
  const Box top{0, 0, 20, 5};

  CHECK(!decoder.open(jpegs::encode(20, 20, {.cmyk = true})));
  CHECK(foreload::exif_orientation(jpeg) == 1);
  CHECK(foreload::exif_orientation(jpegs::encode(20, 20, {.orientation = 6})) == 6);

  // Cut anywhere in its picture, a file is an error, even where the box lies before the cut.
  for (size_t size = jpeg.size() - 10; size > jpeg.size() / 2; size -= 97) {
    const jpegs::Bytes cut(jpeg.begin(), jpeg.begin() + static_cast<ptrdiff_t>(size));
    CHECK(decoder.open(cut));
    CHECK_THROWS(decoder.decode(top, 1), decode);
  }
  // A picture that is whole needs no end marker, and may be followed by anything.
  jpegs::Bytes endless(jpeg.begin(), jpeg.end() - 2);
  CHECK(decoder.open(endless));
  decoder.decode(top, 1);
  jpeg.insert(jpeg.end(), 1000, 0xAB);
  CHECK(decoder.open(jpeg));
  decoder.decode(top, 1);

  const jpegs::Bytes text{'h', 'e', 'l', 'l', 'o'};
  CHECK_THROWS(decoder.open(text), decode);
  CHECK_THROWS(decoder.open(jpegs::Bytes{0xFF, 0xD8, 0xFF}), decode);
  CHECK(decoder.open(jpeg));
}
