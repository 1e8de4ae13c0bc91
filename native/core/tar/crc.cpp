#include "crc.hpp"

#include <array>

namespace foreload {

namespace {

using Table = std::array<std::array<uint32_t, 256>, 8>;

// Row r: what a byte adds that r others follow.
constexpr Table make_table() {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
    table[0][byte] = value;
  }
  for (size_t row = 1; row < 8; ++row) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t value = table[row - 1][byte];
      table[row][byte] = value >> 8 ^ table[0][value & 0xFF];
    }
  }
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

uint32_t crc32(uint32_t before, std::string_view bytes) {
  uint32_t sum = ~before;
  size_t at = 0;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[at + i]); };
  for (; at + 8 <= bytes.size(); at += 8) {
    uint32_t next = kTable[3][byte(4)] ^ kTable[2][byte(5)] ^ kTable[1][byte(6)] ^ kTable[0][byte(7)];
    for (size_t i = 0; i < 4; ++i) next ^= kTable[7 - i][(sum >> 8 * i & 0xFF) ^ byte(i)];
    sum = next;
  }
  for (; at < bytes.size(); ++at) sum = sum >> 8 ^ kTable[0][(sum & 0xFF) ^ byte(0)];
  return ~sum;
}

}  // namespace foreload
