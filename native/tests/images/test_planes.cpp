// An image by way of its planes has the pixels that libjpeg gives.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "check.hpp"
#include "jpegs.hpp"
#include "planes.hpp"

using foreload::Box;
using foreload::JpegDecoder;

int main() {
  std::mt19937 random(7);
  const auto below = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  JpegDecoder decoder;
  foreload::PlanesToRgb to_rgb;
  for (int round = 0; round < 300; ++round) {
    jpegs::Kind kind;
    kind.horizontal = kind.vertical = 2;
    kind.progressive = round % 5 == 0;
    kind.restart = round % 3 == 0 ? 1 + below(9) : 0;
    kind.quality = 1 + below(100);
    kind.noise = round % 4 == 0;
    const int width = round < 40 ? 1 + round / 2 : 1 + below(200);
    const int height = round < 40 ? 1 + below(36) : 1 + below(150);
    const auto jpeg = jpegs::encode(width, height, kind, static_cast<unsigned>(round));
    const auto whole = jpegs::decode(jpeg);
    CHECK(decoder.open(jpeg) && decoder.has_planes());
    std::vector<uint8_t> memory(foreload::planes_bytes(width, height));
    CHECK(decoder.decode_planes(memory.data()));
    const auto planes = foreload::planes_in(memory.data(), width, height);
    for (int i = 0; i < 12; ++i) {
      Box box{0, 0, width, height};
      if (i > 0) box = {below(width), below(height), 0, 0};
      if (i > 0) box.width = 1 + below(width - box.x), box.height = 1 + below(height - box.y);
      const auto pixels = to_rgb.convert(planes, box);
      for (int y = 0; y < box.height; ++y) {
        const size_t from = static_cast<size_t>((box.y + y) * width + box.x) * 3;
        CHECK(std::memcmp(pixels.pixels + static_cast<size_t>(y) * pixels.stride, whole.data() + from,
                          static_cast<size_t>(box.width) * 3) == 0);
      }
      const auto apart = to_rgb.convert_to_planes(planes, box);
      for (int y = 0; y < box.height; ++y) {
        const uint8_t* row = apart.pixels + static_cast<size_t>(y) * apart.stride;
        const size_t from = static_cast<size_t>((box.y + y) * width + box.x) * 3;
        for (size_t i = 0; i < 3 * static_cast<size_t>(box.width); ++i) {
          CHECK(row[i % 3 * apart.plane + i / 3] == whole[from + i]);
        }
      }
    }
    // The decoder is as good as before.
    CHECK(decoder.open(jpeg));
    const auto again = decoder.decode({0, 0, width, height}, 1);
    CHECK(std::memcmp(again->pixels, whole.data(), static_cast<size_t>(width) * 3) == 0);
  }
  CHECK(decoder.open(jpegs::encode(20, 20, {.horizontal = 1})) && !decoder.has_planes());
  auto cut = jpegs::encode(100, 80, {.horizontal = 2, .vertical = 2});
  cut.resize(cut.size() / 2);
  std::vector<uint8_t> memory(foreload::planes_bytes(100, 80));
  CHECK(decoder.open(cut));
  CHECK(!decoder.decode_planes(memory.data()));
}
