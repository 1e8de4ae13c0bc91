// A tiled JPEG has the same pixels, and boxes of it too.
#include <algorithm>
#include <cstring>

#include "check.hpp"
#include "error.hpp"
#include "jpeg.hpp"
#include "jpegs.hpp"
#include "orientation.hpp"
#include "tile.hpp"

namespace {

std::mt19937 random_bits(7);

int below(int count) {
  return static_cast<int>(random_bits() % static_cast<unsigned>(count));
}

foreload::JpegDecoder decoder;
const jpegs::Bytes kScan{0xFF, 0xDA};

void check(const jpegs::Kind& kind, int width, int height, int interval) {
  const auto jpeg = jpegs::encode(width, height, kind, random_bits());
  const auto whole = jpegs::decode(jpeg);
  const auto tiled = foreload::tile_jpeg(jpeg, interval);
  CHECK(!tiled.empty());
  CHECK(jpegs::decode(tiled) == whole);
  CHECK(foreload::exif_orientation(tiled) == foreload::exif_orientation(jpeg));
  for (int i = 0; i < 20; ++i) {
    foreload::Box box{below(width), below(height), 0, 0};
    box.width = 1 + below(width - box.x);
    box.height = 1 + below(height - box.y);
    CHECK(decoder.open(tiled));
    const auto pixels = decoder.decode(box, 1);
    CHECK(pixels.has_value());
    for (int y = 0; y < box.height; ++y) {
      const size_t from = static_cast<size_t>((box.y + y) * width + box.x) * 3;
      CHECK(std::memcmp(pixels->pixels + static_cast<size_t>(y) * pixels->stride, whole.data() + from,
                        static_cast<size_t>(box.width) * 3) == 0);
    }
  }
}

}  // namespace

int main() {
  for (const auto& kind : jpegs::kinds()) {
    for (const int interval : {0, 1, 3, 7, 1000}) {
      check(kind, 200, 150, interval);
      check(kind, 31 * 16, 40, interval);  // a prime number of MCUs in a row
      check(kind, 9, 5, interval);
    }
  }
  check({.orientation = 6}, 100, 60, 0);
  const auto jpeg = jpegs::encode(100, 75, {});
  CHECK_THROWS(foreload::tile_jpeg({jpeg.data(), jpeg.size() / 2}, 0), decode);
  jpegs::Bytes endless(jpeg.begin(), jpeg.end() - 2);
  CHECK_THROWS(foreload::tile_jpeg(endless, 0), decode);
  // What libjpeg guesses stays with the file: a picture that ends before its time, and one without its last
  // scan.
  jpegs::Bytes guessed(jpeg.begin(), jpeg.begin() + static_cast<ptrdiff_t>(jpeg.size()) / 2);
  guessed.insert(guessed.end(), {0xFF, 0xD9});
  CHECK(jpegs::Reader::read(guessed).has_value() && foreload::tile_jpeg(guessed, 0).empty());
  auto scans = jpegs::encode(100, 75, {.progressive = true});
  const auto last = std::find_end(scans.begin(), scans.end(), kScan.begin(), kScan.end());
  scans.erase(last, scans.end() - 2);
  CHECK(jpegs::Reader::read(scans).has_value() && foreload::tile_jpeg(scans, 0).empty());
  // More blocks than fit in an interleaved scan, found only after long markers were written: nothing is freed
  // twice.
  auto odd = jpegs::encode(64, 64, {.horizontal = 4, .vertical = 4, .separate = true});
  jpegs::Bytes marker(6002, 7);
  marker[0] = 0xFF, marker[1] = 0xE2, marker[2] = 6000 >> 8, marker[3] = 6000 & 255;
  odd.insert(odd.begin() + 2, marker.begin(), marker.end());
  for (int round = 0; round < 20; ++round) CHECK(foreload::tile_jpeg(odd, 0).empty());
  // Scans without end, which decoders refuse.
  auto repeated = jpegs::encode(16, 16, {.separate = true});
  const auto scan = std::find_end(repeated.begin(), repeated.end(), kScan.begin(), kScan.end());
  const jpegs::Bytes again(scan, repeated.end() - 2);
  for (const size_t times : {10, 600}) {
    jpegs::Bytes file(repeated.begin(), repeated.end() - 2);
    for (size_t i = 0; i < times; ++i) file.insert(file.end(), again.begin(), again.end());
    file.insert(file.end(), {0xFF, 0xD9});
    CHECK(foreload::tile_jpeg(file, 0).empty() == (times == 600));
  }
  const jpegs::Bytes text{'h', 'e', 'l', 'l', 'o'};
  CHECK_THROWS(foreload::tile_jpeg(text, 0), decode);
}
