#include "orientation.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace foreload {

namespace {

// Reads numbers of a TIFF block in its byte order; outside of the block everything is 0.
class Tiff {
 public:
  explicit Tiff(std::span<const uint8_t> bytes)
      : bytes_(bytes), little_(bytes.size() > 1 && bytes[0] == 'I' && bytes[1] == 'I') {}

  uint32_t number(size_t at, int size) const {
    if (at > bytes_.size() || bytes_.size() - at < static_cast<size_t>(size)) return 0;
    uint32_t value = 0;
    for (int i = 0; i < size; ++i) {
      value = value << 8 | bytes_[at + static_cast<size_t>(little_ ? size - 1 - i : i)];
    }
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
  bool little_;
};

// The bytes of a number of a TIFF type; 0 if there is no such type.
size_t number_size(uint32_t type) {
  constexpr uint8_t kSizes[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
  return type < sizeof(kSizes) ? kSizes[type] : 0;
}

// Whether a type is that of integers, which fit into an entry. (Pillow takes bytes for a string.)
bool is_integer(uint32_t type) {
  constexpr uint32_t kShort = 3, kLong = 4, kSignedByte = 6, kSignedShort = 8, kSignedLong = 9, kFolder = 13;
  return type == kShort || type == kLong || type == kSignedByte || type == kSignedShort ||
         type == kSignedLong || type == kFolder;
}

// What an Exif block says.
struct Said {
  bool anything = false;           // whether there is an orientation, valid or not
  std::optional<int> orientation;  // none if the block is unusual
};

Said read_block(std::span<const uint8_t> bytes) {
  const bool is_tiff = bytes.size() >= 8 && (std::memcmp(bytes.data(), "II*", 4) == 0 ||
                                             std::memcmp(bytes.data(), "MM\0*", 4) == 0);
  if (!is_tiff) return {};
  const Tiff tiff(bytes);
  const size_t directory = tiff.number(4, 4);
  const uint32_t entries = tiff.number(directory, 2);
  for (uint32_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + 12 * size_t{i};
    if (entry + 12 > bytes.size()) break;
    constexpr uint32_t kOrientation = 0x0112;
    const bool is_it = tiff.number(entry, 2) == kOrientation;
    const uint32_t type = tiff.number(entry + 2, 2);
    const size_t total = number_size(type) * tiff.number(entry + 4, 4);
    // Of a value that lies elsewhere, Pillow reads nothing behind it if it is not there.
    const size_t at = total <= 4 ? entry + 8 : tiff.number(entry + 8, 4);
    if (at > bytes.size() || bytes.size() - at < total) return {};
    if (!is_it) continue;
    if (!is_integer(type) || total == 0 || total > 4) return {};
    const uint32_t value = tiff.number(at, static_cast<int>(number_size(type)));
    return {true, value >= 1 && value <= 8 ? static_cast<int>(value) : 1};
  }
  return {false, 1};
}

bool begins_with(std::span<const uint8_t> bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

bool contains(std::span<const uint8_t> bytes, std::string_view text) {
  return std::search(bytes.begin(), bytes.end(), text.begin(), text.end()) != bytes.end();
}

// Pillow refuses what comes before this one.
constexpr uint8_t kFirstMarker = 0xC0;

// Whether Pillow reads no length behind a marker: JPG, restarts, the image's begin and end, and JPG0 to
// JPG13.
bool stands_alone(uint8_t marker) {
  return marker == 0xC8 || (marker >= 0xD0 && marker <= 0xD9) || (marker >= 0xF0 && marker <= 0xFD);
}

}  // namespace

std::optional<int> exif_orientation(std::span<const uint8_t> jpeg) {
  using namespace std::string_view_literals;
  constexpr uint8_t kApp1 = 0xE1, kStartOfScan = 0xDA;
  size_t at = 2;
  std::optional<Said> exif;
  bool is_in_xmp = false;
  while (at + 4 <= jpeg.size()) {
    const uint8_t marker = jpeg[at + 1];
    // Bytes between segments, fill bytes among them, are passed over.
    if (jpeg[at] != 0xFF || marker == 0xFF) {
      ++at;
      continue;
    }
    if (marker == 0 || stands_alone(marker)) {
      at += 2;
      continue;
    }
    if (marker == kStartOfScan) break;
    const size_t length = size_t{jpeg[at + 2]} << 8 | jpeg[at + 3];
    if (marker < kFirstMarker || length < 2 || at + 2 + length > jpeg.size()) return std::nullopt;
    const auto segment = jpeg.subspan(at + 4, length - 2);
    if (marker == kApp1 && begins_with(segment, "Exif\0\0"sv)) {
      if (exif) return std::nullopt;  // continued
      exif = read_block(segment.subspan(6));
    } else if (marker == kApp1 && begins_with(segment, "http://ns.adobe.com/xap/1.0/\0"sv)) {
      is_in_xmp |= contains(segment, "tiff:Orientation"sv);
    }
    at += 2 + length;
  }
  if (exif && !exif->orientation) return std::nullopt;
  if (is_in_xmp && !(exif && exif->anything)) return std::nullopt;
  return exif ? *exif->orientation : 1;
}

Box stored_box(int orientation, int width, int height, const Box& upright) {
  const auto& [x, y, w, h] = upright;
  switch (orientation) {
    case 2:
      return {width - x - w, y, w, h};
    case 3:
      return {width - x - w, height - y - h, w, h};
    case 4:
      return {x, height - y - h, w, h};
    case 5:
      return {y, x, h, w};
    case 6:
      return {y, height - x - w, h, w};
    case 7:
      return {width - y - h, height - x - w, h, w};
    case 8:
      return {width - y - h, x, h, w};
    default:
      return upright;
  }
}

void turn_upright(const Pixels& stored, int orientation, int width, int height, uint8_t* out) {
  const bool mirror_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirror_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool side = sideways(orientation);
  const int last_x = (side ? height : width) - 1, last_y = (side ? width : height) - 1;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const int from_x = side ? y : x, from_y = side ? x : y;
      const uint8_t* from = stored.pixels +
                            static_cast<size_t>(mirror_y ? last_y - from_y : from_y) * stored.stride +
                            static_cast<size_t>(mirror_x ? last_x - from_x : from_x) * 3;
      std::memcpy(out, from, 3);
      out += 3;
    }
  }
}

}  // namespace foreload
