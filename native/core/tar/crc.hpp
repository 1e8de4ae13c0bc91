// CRC-32, as zlib has it.
#pragma once

#include <cstdint>
#include <string_view>

namespace foreload {

// Goes on with a sum of the bytes before; 0 for none.
uint32_t crc32(uint32_t before, std::string_view bytes);

}  // namespace foreload
