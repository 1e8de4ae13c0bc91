// Huffman tables of JPEGs, and a reader of the bits that they code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

// For functions that are compiled once per instruction set: a call could end up in another set's.
#define FORELOAD_INLINE __attribute__((always_inline))

namespace foreload {

// Reads bits, most significant first. 8 bytes behind the last one must be readable.
struct BitReader {
  uint64_t bits = 0;  // left-aligned
  int count = 0;
  const uint8_t* next = nullptr;

  // From here on at least 56 bits are known.
  FORELOAD_INLINE void refill() {
    uint64_t word;
    std::memcpy(&word, next, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    bits |= word >> count;
    next += (63 - count) >> 3;
    count |= 56;
  }

  FORELOAD_INLINE void drop(uint32_t dropped) {
    bits <<= dropped;
    count -= static_cast<int>(dropped);
  }

  // Whether more was read than there is before `end`.
  FORELOAD_INLINE bool is_past(const uint8_t* end) const { return (next - end) * 8 > count; }
};

// What is coded: the first coefficients of blocks or the others; in a progressive file, a scan that gives the
// others for the first time, or one that adds a bit to them.
enum class Codes : uint8_t { dc, ac, ac_first, ac_refine };

// What a table says of the next bits: an entry holds
// (bits of the value << 24) | (bits of the code << 16) | (steps << 8) | bits of both. Steps lead from a
// coefficient to the next that is coded, so they are its run of zeros and one more; 0 in a DC table. In a
// progressive file, a symbol that ends its block may end others too: the bits of its value say how many.
struct HuffmanTable {
  // Indexes of more bits find more codes, and take longer to fill if every file has tables of its own.
  static constexpr int kBits = 11, kSkipBits = 10;
  // The steps of a symbol that ends the block, and those of bits that are no code.
  static constexpr uint32_t kStepsToEnd = 128, kStepsInvalid = 64;
  // Whether decoding went astray in a block, of which it found `k` coefficients: a code does not exist, or
  // leads past the last coefficient. Then k is 65 to 127; otherwise at most 64, or at least 129 after a
  // symbol that ends the block. Of several blocks, k - 1 may be combined by |.
  static constexpr bool is_astray(uint32_t k_minus_1) { return (k_minus_1 & kStepsInvalid) != 0; }

  std::array<uint8_t, 17> counts{};
  std::array<uint8_t, 256> symbols{};
  bool valid = false;
  Codes codes = Codes::dc;
  uint32_t entries[size_t{1} << kBits];  // 0: the code is longer than the index
  // Of Codes::ac. For as many coefficients as fit: (end of block << 15) | (steps << 8) | bits; 0: none fits.
  std::array<uint16_t, size_t{1} << kSkipBits> skips;
  std::array<int32_t, 18> beyond;  // first code of a length that is too large, left-aligned to 16 bits
  std::array<int32_t, 17> offset;  // from code to symbol

  // Takes a file's table over; false if it is none that a baseline JPEG of 8 bits can have. What is loaded
  // already is kept.
  bool load(const uint8_t* new_counts, const uint8_t* new_symbols, Codes new_codes);

  FORELOAD_INLINE uint32_t entry(const BitReader& reader) const {
    const uint32_t found = entries[reader.bits >> (64 - kBits)];
    return __builtin_expect(found != 0, 1) ? found : long_entry(reader.bits);
  }
  // The entry of a code that is longer than the index; if there is no such code, one of kStepsInvalid.
  uint32_t long_entry(uint64_t bits) const;

  uint32_t skip(const BitReader& reader) const { return skips[reader.bits >> (64 - kSkipBits)]; }
};

// Reads the code and the value that an entry stands for.
FORELOAD_INLINE inline int read_value(uint32_t entry, BitReader& reader) {
  const uint32_t size = entry >> 24;
  const uint64_t tail = reader.bits << (entry >> 16 & 0xFF);
  // The first bit of a value says its sign. No branch on that or on the size: they are as good as random, and
  // a wrong guess costs more than all of this.
  const auto positive = static_cast<int32_t>((tail >> 1) >> (63 - size));
  const auto negative = static_cast<int32_t>(~(static_cast<int64_t>(tail) >> 63));
  reader.drop(entry & 0xFF);
  return positive + (negative & (1 - (1 << size)));
}

}  // namespace foreload
