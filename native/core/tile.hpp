// JPEGs that open at the crop: the same coefficients with restart markers, so that what lies outside need not
// be decoded. Any JPEG reader reads them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foreload {

// Transcodes a JPEG without loss to baseline coding with restart intervals of about `interval` MCUs and
// Huffman tables of its own; 0 chooses. Exif, ICC profile and comments are kept. Empty where the file cannot
// be tiled (12 bits, or lossless coding). Throws Error(decode) where it is damaged.
std::vector<uint8_t> tile_jpeg(std::span<const uint8_t> bytes, int interval);

}  // namespace foreload
