// A damaged JPEG gives the pixels that libjpeg gives for the whole file, or none; never others, in no box.
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "check.hpp"
#include "error.hpp"
#include "image.hpp"
#include "jpegs.hpp"
#include "tile.hpp"

using namespace foreload;
using jpegs::Bytes;

namespace {

std::mt19937 random_bits(11);

size_t below(size_t count) {
  return random_bits() % count;
}

ptrdiff_t at(size_t position) {
  return static_cast<ptrdiff_t>(position);
}

// Where markers with codes in [first, last] are, in the whole file.
std::vector<size_t> markers(const Bytes& jpeg, uint8_t first, uint8_t last) {
  std::vector<size_t> found;
  for (size_t i = 2; i + 1 < jpeg.size(); ++i) {
    if (jpeg[i] == 0xFF && jpeg[i + 1] >= first && jpeg[i + 1] <= last) found.push_back(i);
  }
  return found;
}

constexpr uint8_t kFrame = 0xC0, kLastFrame = 0xC2, kTables = 0xC4, kRestart = 0xD0, kLastRestart = 0xD7,
                  kScan = 0xDA, kQuantisers = 0xDB, kInterval = 0xDD;

size_t segment_size(const Bytes& jpeg, size_t marker) {
  return 2 + (size_t{jpeg[marker + 2]} << 8 | jpeg[marker + 3]);
}

// Where the data of the first scan begins.
size_t data_begin(const Bytes& jpeg) {
  const size_t scan = markers(jpeg, kScan, kScan).front();
  return scan + segment_size(jpeg, scan);
}

size_t any_data(const Bytes& jpeg) {
  const size_t begin = data_begin(jpeg);
  return begin + below(jpeg.size() - 2 - begin);
}

void erase(Bytes& jpeg, size_t from, size_t size) {
  jpeg.erase(jpeg.begin() + at(from), jpeg.begin() + at(std::min(jpeg.size(), from + size)));
}

// Does something to one of the markers, if there are any.
std::function<void(Bytes&)> with_marker(uint8_t first, uint8_t last,
                                        std::function<void(Bytes&, size_t)> change) {
  return [=](Bytes& jpeg) {
    const auto found = markers(jpeg, first, last);
    if (!found.empty()) change(jpeg, found[below(found.size())]);
  };
}

using Damage = std::pair<const char*, std::function<void(Bytes&)>>;

std::vector<Damage> damages() {
  const auto drop_segment = [](Bytes& jpeg, size_t marker) {
    erase(jpeg, marker, segment_size(jpeg, marker));
  };
  const auto repeat_segment = [](Bytes& jpeg, size_t marker) {
    const Bytes segment(jpeg.begin() + at(marker), jpeg.begin() + at(marker + segment_size(jpeg, marker)));
    jpeg.insert(jpeg.begin() + at(marker), segment.begin(), segment.end());
  };
  const auto set = [](size_t offset, uint8_t value) {
    return [=](Bytes& jpeg, size_t marker) { jpeg[marker + offset] = value; };
  };
  return {
      {"a restart marker is lost",
       with_marker(kRestart, kLastRestart, [](auto& j, size_t m) { erase(j, m, 2); })},
      {"a restart marker has another number",
       with_marker(kRestart, kLastRestart,
                   [](auto& j, size_t m) { j[m + 1] = static_cast<uint8_t>(kRestart + below(8)); })},
      {"an interval is lost", with_marker(kRestart, kLastRestart,
                                          [](auto& j, size_t m) {
                                            const auto all = markers(j, kRestart, kLastRestart);
                                            const size_t end = all.back() > m ? all.back() : m + 2;
                                            erase(j, m, end - m);
                                          })},
      {"a restart marker where none belongs",
       [](auto& j) {
         const Bytes marker{0xFF, static_cast<uint8_t>(kRestart + below(8))};
         j.insert(j.begin() + at(any_data(j)), marker.begin(), marker.end());
       }},
      {"no restart interval", with_marker(kInterval, kInterval, drop_segment)},
      {"another restart interval", with_marker(kInterval, kInterval, set(5, 7))},
      {"a height that is too large", with_marker(kFrame, kLastFrame, set(5, 2))},
      {"a height that is too small", with_marker(kFrame, kLastFrame, set(6, 9))},
      {"a width that is too large", with_marker(kFrame, kLastFrame, set(7, 1))},
      {"no height", with_marker(kFrame, kLastFrame, [](auto& j, size_t m) { j[m + 5] = j[m + 6] = 0; })},
      {"other sampling factors", with_marker(kFrame, kLastFrame, set(11, 0x11))},
      {"sampling factors that are none", with_marker(kFrame, kLastFrame, set(11, 0x50))},
      {"another coding process", with_marker(kFrame, kLastFrame, set(1, 0xC9))},
      {"a repeated frame", with_marker(kFrame, kLastFrame, repeat_segment)},
      {"no Huffman table", with_marker(kTables, kTables, drop_segment)},
      {"a repeated Huffman table", with_marker(kTables, kTables, repeat_segment)},
      {"another Huffman table",
       with_marker(kTables, kTables, [](auto& j, size_t m) { j[m + 5 + below(16)] ^= 1; })},
      {"another symbol",
       with_marker(kTables, kTables, [](auto& j, size_t m) { j[m + 21 + below(8)] ^= 0x11; })},
      {"no quantisers", with_marker(kQuantisers, kQuantisers, drop_segment)},
      {"a repeated scan header", with_marker(kScan, kScan, repeat_segment)},
      {"no scan header", with_marker(kScan, kScan, drop_segment)},
      {"a lost scan", with_marker(kScan, kScan,
                                  [](auto& j, size_t m) {
                                    for (const size_t next : markers(j, kTables, kScan)) {
                                      if (next > m && (j[next + 1] == kScan || j[next + 1] == kTables))
                                        return erase(j, m, next - m);
                                    }
                                  })},
      {"a bit in the data", [](auto& j) { j[any_data(j)] ^= static_cast<uint8_t>(1 << below(8)); }},
      {"ones in the data",
       [](auto& j) {
         const Bytes ones{0xFF, 0x00, 0xFF, 0x00, 0xFF, 0x00, 0xFF, 0x00};
         j.insert(j.begin() + at(any_data(j)), ones.begin(), ones.end());
       }},
      {"zeros in the data", [](auto& j) { j.insert(j.begin() + at(any_data(j)), 1 + below(40), 0); }},
      {"bytes missing in the data", [](auto& j) { erase(j, any_data(j), 1 + below(30)); }},
      {"bytes before the end marker", [](auto& j) { j.insert(j.end() - 2, 1 + below(9), 0x5A); }},
      {"a segment before the end marker",
       [](auto& j) {
         const Bytes comment{0xFF, 0xFE, 0, 4, 'h', 'i'};
         j.insert(j.end() - 2, comment.begin(), comment.end());
       }},
      {"an unknown marker before the end marker",
       [](auto& j) {
         const Bytes marker{0xFF, 0x02};
         j.insert(j.end() - 2, marker.begin(), marker.end());
       }},
      {"an end marker in the data",
       [](auto& j) {
         const Bytes end{0xFF, 0xD9};
         j.insert(j.begin() + at(any_data(j)), end.begin(), end.end());
       }},
      {"cut short", [](auto& j) { j.resize(any_data(j)); }},
      {"cut at a scan or table", with_marker(kTables, kScan,
                                             [](auto& j, size_t m) {
                                               if (m > data_begin(j)) j.resize(m);
                                             })},
      {"cut before the end marker", [](auto& j) { erase(j, j.size() - 2, 2); }},
      {"cut within the end marker", [](auto& j) { erase(j, j.size() - 1, 1); }},
      {"cut short, but ended",
       [](auto& j) {
         j.resize(any_data(j));
         j.insert(j.end(), {0xFF, 0xD9});
       }},
      {"another file behind its half",
       [](auto& j) {
         const Bytes other = jpegs::encode(50, 40, {}, 9);
         j.resize(any_data(j));
         j.insert(j.end(), other.begin() + 300, other.end());
       }},
  };
}

JpegDecoder decoder;
ImageLoader loader;

DecodedImage as_pillow(const std::string& path, std::span<const uint8_t> bytes) {
  auto picture = jpegs::Reader::read(bytes.data(), bytes.size());
  if (!picture) throw Error(ErrorKind::decode, "damaged", path);
  auto rgb = std::make_shared<Bytes>(std::move(picture->rgb));
  return {rgb->data(), picture->width, picture->height, rgb};
}

// Returns whether the decoder answered by itself.
bool check_box(const Bytes& jpeg, const std::optional<jpegs::Picture>& whole, int reduction) {
  if (!decoder.open(jpeg)) return false;
  const int width = (decoder.width() + reduction - 1) / reduction;
  const int height = (decoder.height() + reduction - 1) / reduction;
  Box box{static_cast<int>(below(static_cast<size_t>(width))),
          static_cast<int>(below(static_cast<size_t>(height))), 0, 0};
  box.width = 1 + static_cast<int>(below(static_cast<size_t>(width - box.x)));
  box.height = 1 + static_cast<int>(below(static_cast<size_t>(height - box.y)));
  const auto pixels = decoder.decode(box, reduction);
  if (!pixels) return false;
  CHECK(whole.has_value() && whole->width == width && whole->height == height);
  for (int y = 0; y < box.height; ++y) {
    const size_t from = static_cast<size_t>((box.y + y) * width + box.x) * 3;
    CHECK(std::memcmp(pixels->pixels + static_cast<size_t>(y) * pixels->stride, whole->rgb.data() + from,
                      static_cast<size_t>(box.width) * 3) == 0);
  }
  return true;
}

void check(const Bytes& jpeg) {
  const auto whole = jpegs::Reader::read(jpeg);
  for (int i = 0; i < 6; ++i) check_box(jpeg, whole, 1);
  check_box(jpeg, jpegs::Reader::read(jpeg, 2), 2);
  if (!whole) {
    CHECK_THROWS(loader.decode("damaged", jpeg, as_pillow), decode);
    return;
  }
  const DecodedImage image = loader.decode("damaged", jpeg, as_pillow);
  CHECK(image.width == whole->width && image.height == whole->height);
  CHECK(std::memcmp(image.pixels, whole->rgb.data(), whole->rgb.size()) == 0);
  if (decoder.open(jpeg) && decoder.has_planes()) {
    Bytes memory(planes_bytes(decoder.width(), decoder.height()));
    if (decoder.decode_planes(memory.data())) {
      const Box all{0, 0, whole->width, whole->height};
      PlanesToRgb to_rgb;
      const Pixels rgb = to_rgb.convert(planes_in(memory.data(), all.width, all.height), all);
      const size_t row = static_cast<size_t>(all.width) * 3;
      for (size_t y = 0; y < static_cast<size_t>(all.height); ++y) {
        CHECK(std::memcmp(rgb.pixels + y * rgb.stride, whole->rgb.data() + y * row, row) == 0);
      }
    }
  }
}

// What can be tiled keeps its pixels.
void check_tiled(const Bytes& jpeg) {
  Bytes tiled;
  try {
    tiled = tile_jpeg(jpeg, static_cast<int>(below(6)));
  } catch (const Error&) {
    CHECK(!jpegs::Reader::read(jpeg));
    return;
  }
  if (tiled.empty()) return;
  const auto before = jpegs::Reader::read(jpeg), after = jpegs::Reader::read(tiled);
  CHECK(before && after && before->rgb == after->rgb);
}

// A crop of a sound file never needs anyone else, wherever the damage of another crop may have been.
void check_crops_above_the_damage() {
  auto jpeg = jpegs::encode(160, 120, {});
  const auto sound = jpegs::Reader::read(jpeg);
  for (size_t i = jpeg.size() - 300; i < jpeg.size() - 290; ++i) jpeg[i] = 0x5A;
  const auto whole = jpegs::Reader::read(jpeg);
  CHECK(whole && whole->rgb != sound->rgb);
  CHECK(decoder.open(jpeg));
  const auto top = decoder.decode({0, 0, 160, 16}, 1);
  CHECK(top && std::memcmp(top->pixels, whole->rgb.data(), 160 * 3) == 0);
}

}  // namespace

// test_damage [ROUNDS]
int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : static_cast<int>(rounds_alone(12));
  for (const auto& kind : jpegs::kinds()) {
    const Bytes sound = jpegs::encode(100, 75, kind, 3);
    check(sound);
    CHECK(check_box(sound, jpegs::Reader::read(sound), 1));
    for (const auto& [name, damage] : damages()) {
      for (int i = 0; i < rounds; ++i) {
        Bytes jpeg = sound;
        damage(jpeg);
        check(jpeg);
        check_tiled(jpeg);
      }
    }
  }
  check_crops_above_the_damage();
}
