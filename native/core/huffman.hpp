// Huffman tables of JPEGs, and a reader of the bits that they code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace foreload {

// Reads bits, most significant first. 8 bytes behind the last one must be readable.
struct BitReader {
  uint64_t bits = 0;  // left-aligned
  int count = 0;
  const uint8_t* next = nullptr;

  // From here on at least 56 bits are known.
  void refill() {
    uint64_t word;
    std::memcpy(&word, next, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    bits |= word >> count;
    next += (63 - count) >> 3;
    count |= 56;
  }

  void drop(uint32_t dropped) {
    bits <<= dropped;
    count -= static_cast<int>(dropped);
  }

  // Whether more was read than there is before `end`.
  bool is_past(const uint8_t* end) const { return (next - end) * 8 > count; }
};

// What a table says of the next bits: an entry holds
// (bits of the value << 24) | (bits of the code << 16) | (run << 8) | bits of both.
struct HuffmanTable {
  // Indexes of more bits find more codes, and take longer to fill if every file has tables of its own.
  static constexpr int kBits = 11, kSkipBits = 10;
  // The run of a symbol that ends the block.
  static constexpr uint32_t kRunToEnd = 64;

  std::array<uint8_t, 17> counts{};
  std::array<uint8_t, 256> symbols{};
  bool valid = false;
  std::array<uint32_t, size_t{1} << kBits> entries;  // 0: the code is longer than the index
  // For as many coefficients as fit: (end of block << 15) | (steps << 8) | bits; 0: none fits.
  std::array<uint16_t, size_t{1} << kSkipBits> skips;
  std::array<int32_t, 18> beyond;  // first code of a length that is too large, left-aligned to 16 bits
  std::array<int32_t, 17> offset;  // from code to symbol

  // Takes a file's table over; false if it is none that a baseline JPEG of 8 bits can have. What is loaded
  // already is kept. `ac`: for the coefficients other than the first.
  bool load(const uint8_t* new_counts, const uint8_t* new_symbols, bool ac);

  // The symbol of a code that is longer than the index; 0 if there is no such code, as libjpeg has it.
  int long_symbol(uint64_t bits, int& length) const;
  // The same as an entry, in a table for AC coefficients.
  uint32_t long_entry(uint64_t bits) const;

  uint32_t entry(const BitReader& reader) const { return entries[reader.bits >> (64 - kBits)]; }
  uint32_t skip(const BitReader& reader) const { return skips[reader.bits >> (64 - kSkipBits)]; }
};

// The bits of a value as a number: its first bit says the sign.
constexpr int extended(int value, int size) {
  return size > 0 && value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
}

// Reads the difference of a DC coefficient to the one before it.
inline int read_difference(const HuffmanTable& dc, BitReader& reader) {
  const uint32_t found = dc.entry(reader);
  int length = static_cast<int>(found >> 16 & 0xFF);
  const int size = found != 0 ? static_cast<int>(found >> 24) : dc.long_symbol(reader.bits, length);
  reader.drop(static_cast<uint32_t>(length));
  const int difference = size == 0 ? 0 : extended(static_cast<int>(reader.bits >> (64 - size)), size);
  reader.drop(static_cast<uint32_t>(size));
  return difference;
}

}  // namespace foreload
