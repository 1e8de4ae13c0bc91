// The Exif orientation of an image, and turning pixels upright.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "jpeg.hpp"

namespace foreload {

// Returns 1 to 8, as Exif 2.32 tag 0x0112 numbers them; 1 (upright) if a JPEG has none, or no valid one.
// Returns none if it is said in an unusual way, such as in XMP only, or by damaged Exif: Pillow's answer
// counts then.
std::optional<int> exif_orientation(std::span<const uint8_t> jpeg);

// Whether width and height are swapped: orientations 5 to 8.
inline bool sideways(int orientation) {
  return orientation >= 5;
}

// Returns where a box of the upright image lies in the image as it is stored, width x height.
Box stored_box(int orientation, int width, int height, const Box& upright);

// Writes `width` x `height` upright RGB pixels without gaps, from a box that stored_box() returned.
void turn_upright(const Pixels& stored, int orientation, int width, int height, uint8_t* out);

}  // namespace foreload
