// Tiled JPEGs: the same coefficients with restart markers, so that what lies outside of a crop need not be
// decoded. Any JPEG reader reads them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foreload {

// Transcodes a JPEG without loss to baseline coding with restart intervals of about `interval` MCUs and
// Huffman tables of its own; 0 chooses. Exif, ICC profile and comments are kept. Empty if the file cannot
// be tiled (12 bits, lossless coding, or damage that libjpeg reads nevertheless). Throws Error(decode) if it
// is damaged beyond that.
std::vector<uint8_t> tile_jpeg(std::span<const uint8_t> bytes, int interval);

}  // namespace foreload
