// Huffman tables say of any bits what reading them one by one says.
#include <random>

#include "check.hpp"
#include "huffman.hpp"

using foreload::BitReader;
using foreload::Codes;
using foreload::HuffmanTable;

namespace {

std::mt19937_64 random_bits(3);

unsigned below(unsigned count) {
  return static_cast<unsigned>(random_bits() % count);
}

// A table as a file gives it: how many codes there are of each length, and their symbols.
struct Definition {
  std::array<uint8_t, 17> counts{};
  std::array<uint8_t, 256> symbols{};
};

Definition any_definition(bool ac) {
  Definition table;
  const unsigned shortest = 1 + below(8);
  unsigned used = 0, total = 0;
  for (unsigned length = shortest; length <= 16; ++length) {
    for (unsigned most = below(8); most > 0 && total < 256; --most) {
      // The code of ones alone stays free.
      if (used + (1U << (16 - length)) >= 1U << 16) break;
      used += 1U << (16 - length);
      ++table.counts[length];
      const unsigned run = ac ? below(4) == 0 ? 15 * below(2) : below(16) : 0;
      table.symbols[total++] = static_cast<uint8_t>(run << 4 | below(12));
    }
  }
  if (total == 0) table.counts[16] = 1;
  return table;
}

struct Coefficient {
  int symbol = 0, code_bits = 0;  // 0: there is no such code
};

Coefficient read_bit_by_bit(const Definition& table, uint64_t bits) {
  int code = 0, first = 0, index = 0;
  for (int length = 1; length <= 16; ++length) {
    code = code << 1 | static_cast<int>(bits >> (64 - length) & 1);
    first <<= 1;
    const int count = table.counts[static_cast<size_t>(length)];
    if (code - first < count) return {table.symbols[static_cast<size_t>(index + code - first)], length};
    first += count;
    index += count;
  }
  return {};
}

// As the JPEG standard extends the sign of a value (figure F.12).
int extended(int value, int size) {
  return size > 0 && value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
}

void check_entry(const HuffmanTable& table, const Definition& definition, uint64_t bits, bool ac) {
  const auto [symbol, code_bits] = read_bit_by_bit(definition, bits);
  if (code_bits == 0) {
    CHECK((table.entry({bits, 64, nullptr}) >> 8 & 0xFF) == HuffmanTable::kStepsInvalid);
    return;
  }
  const int size = ac ? symbol & 15 : symbol;
  const bool ends = ac && size == 0 && symbol != 0xF0;
  const uint32_t steps = ends ? HuffmanTable::kStepsToEnd : ac ? (static_cast<uint32_t>(symbol) >> 4) + 1 : 0;
  BitReader reader{bits, 64, nullptr};
  const uint32_t entry = table.entry(reader);
  CHECK((entry >> 8 & 0xFF) == steps);
  const int value = read_value(entry, reader);
  CHECK(reader.count == 64 - code_bits - size);
  CHECK(reader.bits == bits << (code_bits + size));
  CHECK(value == (size == 0 ? 0 : extended(static_cast<int>(bits << code_bits >> (64 - size)), size)));
}

// Skipping several coefficients is skipping them one by one.
void check_skip(const HuffmanTable& table, uint64_t bits) {
  const uint32_t skip = table.skip({bits, 64, nullptr});
  BitReader reader{bits, 64, nullptr};
  uint32_t steps = 0;
  bool ended = false;
  while (64 - reader.count < static_cast<int>(skip & 0xFF)) {
    const uint32_t entry = table.entry(reader);
    const uint32_t more = entry >> 8 & 0xFF;
    CHECK(!ended);
    ended = more == HuffmanTable::kStepsToEnd;
    if (!ended) steps += more;
    reader.drop(entry & 0xFF);
  }
  CHECK(64 - reader.count == static_cast<int>(skip & 0xFF));
  CHECK(skip >> 15 == ended && (skip >> 8 & 0x7F) == steps);
}

}  // namespace

int main() {
  // One table for all, as in a decoder: nothing of a file's may stay for the next.
  HuffmanTable table;
  for (int i = 0; i < 500; ++i) {
    const bool ac = below(2) != 0;
    const Definition definition = any_definition(ac);
    for (int again = 0; again < 2; ++again) {
      CHECK(table.load(definition.counts.data(), definition.symbols.data(), ac ? Codes::ac : Codes::dc));
    }
    for (int j = 0; j < 500; ++j) {
      // Long codes begin with ones.
      const uint64_t bits = random_bits() | ~(~uint64_t{0} >> below(17));
      check_entry(table, definition, bits, ac);
      if (ac) check_skip(table, bits);
    }
  }
  // The same definition means something else in a table of the other sort.
  Definition one{};
  one.counts[1] = 1;
  one.symbols[0] = 0;
  const BitReader zeros{0, 64, nullptr};
  CHECK(table.load(one.counts.data(), one.symbols.data(), Codes::ac));
  CHECK((table.entry(zeros) >> 8 & 0xFF) == HuffmanTable::kStepsToEnd);
  CHECK(table.load(one.counts.data(), one.symbols.data(), Codes::dc));
  CHECK((table.entry(zeros) >> 8 & 0xFF) == 0);

  // No table of 8-bit samples: no code, more codes than there can be, a value that is too long.
  CHECK(!table.load(Definition{}.counts.data(), one.symbols.data(), Codes::dc));
  Definition many{};
  many.counts[1] = 3;
  CHECK(!table.load(many.counts.data(), many.symbols.data(), Codes::dc));
  one.symbols[0] = 12;
  CHECK(!table.load(one.counts.data(), one.symbols.data(), Codes::ac));
  CHECK(!table.load(one.counts.data(), one.symbols.data(), Codes::dc));

  // In a progressive file a symbol that ends a block has a value; one that adds a bit has at most that bit.
  one.symbols[0] = 0x30;
  CHECK(table.load(one.counts.data(), one.symbols.data(), Codes::ac_first));
  CHECK(table.entry(zeros) == (3U << 24 | 1U << 16 | HuffmanTable::kStepsToEnd << 8 | 4U));
  one.symbols[0] = 0x32;
  CHECK(table.load(one.counts.data(), one.symbols.data(), Codes::ac_first));
  CHECK((table.entry(zeros) >> 8 & 0xFF) == 4);
  CHECK(table.load(one.counts.data(), one.symbols.data(), Codes::ac_refine));
  CHECK(HuffmanTable::is_astray(table.entry(zeros) >> 8));
  one.symbols[0] = 11;
  CHECK(!table.load(one.counts.data(), one.symbols.data(), Codes::ac_first));
}
