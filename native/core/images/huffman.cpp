#include "huffman.hpp"

#include <algorithm>
#include <iterator>

namespace foreload {

namespace {

// No value of 8-bit samples is longer; and two of them fit into what a refill gives.
constexpr int kMaxValueBits = 11;

// In a progressive file, the bits of two symbols must be among those of a refill, and so must 14 bits that
// say how many blocks a symbol ends.
constexpr int kMaxProgressiveBits = 10;

// Whether a table that has this symbol is left to libjpeg.
constexpr bool is_too_long(int symbol, Codes codes) {
  if (codes == Codes::dc) return symbol > kMaxValueBits;
  return (symbol & 15) > (codes == Codes::ac ? kMaxValueBits : kMaxProgressiveBits);
}

// The entry of a symbol. In a DC table it has no steps; in an AC table a symbol without a value ends the
// block, except the one that stands for 16 zeros.
constexpr uint32_t entry_of(int symbol, int code_bits, Codes codes) {
  int value_bits = codes == Codes::dc ? symbol : symbol & 15;
  uint32_t steps = codes == Codes::dc ? 0 : static_cast<uint32_t>(symbol >> 4) + 1;
  if (codes != Codes::dc && value_bits == 0 && symbol != 0xF0) {
    steps = HuffmanTable::kStepsToEnd;
    if (codes != Codes::ac) value_bits = symbol >> 4;
  } else if (codes == Codes::ac_refine && value_bits > 1) {
    steps = HuffmanTable::kStepsInvalid;
  }
  return static_cast<uint32_t>(value_bits) << 24 | static_cast<uint32_t>(code_bits) << 16 | steps << 8 |
         static_cast<uint32_t>(code_bits + value_bits);
}

// What can be skipped at an index of `skips`.
uint16_t skip_of(const HuffmanTable& table, size_t index) {
  constexpr uint32_t kBits = HuffmanTable::kBits, kSkipBits = HuffmanTable::kSkipBits;
  constexpr size_t kMask = (size_t{1} << kSkipBits) - 1;
  uint32_t used = 0, steps = 0, ended = 0;
  while (used < kSkipBits && !ended) {
    // The bits beyond the index are unknown: only codes that are within it count.
    const uint32_t found = table.entries[(index << used & kMask) << (kBits - kSkipBits)];
    if (found == 0 || used + (found >> 16 & 0xFF) > kSkipBits) break;
    const uint32_t more = found >> 8 & 0xFF;
    used += found & 0xFF;
    if (more == HuffmanTable::kStepsToEnd) {
      ended = 1;
    } else {
      steps += more;
    }
  }
  return steps > 63 ? 0 : static_cast<uint16_t>(ended << 15 | steps << 8 | used);
}

}  // namespace

bool HuffmanTable::load(const uint8_t* new_counts, const uint8_t* new_symbols, Codes new_codes) {
  int total = 0;
  for (int length = 1; length <= 16; ++length) total += new_counts[length];
  if (total < 1 || total > 256) return false;
  if (valid && codes == new_codes && std::equal(counts.begin() + 1, counts.end(), new_counts + 1) &&
      std::equal(new_symbols, new_symbols + total, symbols.begin())) {
    return true;
  }
  valid = false;
  codes = new_codes;
  std::copy(new_counts, new_counts + 17, counts.begin());
  std::copy(new_symbols, new_symbols + total, symbols.begin());
  std::fill(std::begin(entries), std::end(entries), 0);
  int code = 0, at = 0;
  for (int length = 1; length <= 16; ++length, code <<= 1) {
    offset[static_cast<size_t>(length)] = at - code;
    for (int i = 0; i < counts[static_cast<size_t>(length)]; ++i, ++code, ++at) {
      if (code >= 1 << length) return false;
      const int symbol = symbols[static_cast<size_t>(at)];
      if (is_too_long(symbol, codes)) return false;
      if (length > kBits) continue;
      uint32_t* const first = entries + (code << (kBits - length));
      std::fill(first, first + (1 << (kBits - length)), entry_of(symbol, length, codes));
    }
    beyond[static_cast<size_t>(length)] = code << (16 - length);
  }
  beyond[17] = 1 << 30;
  if (codes == Codes::ac) {
    for (size_t index = 0; index < skips.size(); ++index) skips[index] = skip_of(*this, index);
  }
  valid = true;
  return true;
}

uint32_t HuffmanTable::long_entry(uint64_t bits) const {
  const auto code = static_cast<int32_t>(bits >> 48);
  int length = kBits + 1;
  while (length <= 16 && code >= beyond[static_cast<size_t>(length)]) ++length;
  if (length > 16) return kStepsInvalid << 8;
  const int at = (code >> (16 - length)) + offset[static_cast<size_t>(length)];
  return entry_of(symbols[static_cast<size_t>(at & 255)], length, codes);
}

}  // namespace foreload
