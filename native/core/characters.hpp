// Text as code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace foreload {

// The code points of UTF-8 text, at most `most` of them; returns how many. Throws Error(value), whose `code`
// is the offset of the byte at which the text ceases to be UTF-8 (Unicode 15, table 3-7).
size_t decode_utf8(std::span<const uint8_t> text, size_t most, int64_t* out);

}  // namespace foreload
