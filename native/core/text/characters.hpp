// Text as code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace foreload {

// Decodes UTF-8 text into at most `most` code points; returns how many. Throws Error(value), whose `code` is
// the offset of the first byte that is not UTF-8 (Unicode 15, table 3-7).
size_t decode_utf8(std::span<const uint8_t> text, size_t most, int64_t* out);

}  // namespace foreload
