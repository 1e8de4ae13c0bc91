// All sets of scan kernels read what the standard says, bit by bit, and notice what is none of it.
#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "check.hpp"
#include "scans.hpp"

using namespace foreload;

namespace {

std::mt19937 random_bits(3);

unsigned below(unsigned count) {
  return random_bits() % count;
}

struct Blocks {
  std::vector<uint64_t> nonzero;
  std::vector<int16_t> out;
};

struct Definition {
  std::array<uint8_t, 17> counts{};
  std::array<uint8_t, 256> symbols{};
};

Definition any_definition(bool refine) {
  Definition made;
  std::vector<uint8_t> symbols;
  const unsigned longest = below(2) ? 1 : 15;
  for (unsigned run = 0; run < 16; ++run) {
    for (unsigned size = 0; size <= (refine ? 1U : 10U); ++size) {
      // Long runs of blocks would end the test, and long ones of coefficients the block.
      if (run > longest && run < 15) continue;
      if (size > 0 || run < 4 || run == 15) symbols.push_back(static_cast<uint8_t>(run << 4 | size));
    }
  }
  std::shuffle(symbols.begin(), symbols.end(), random_bits);
  std::copy(symbols.begin(), symbols.end(), made.symbols.begin());
  unsigned left = static_cast<unsigned>(symbols.size()), codes = 1;
  for (unsigned length = 1; length <= 16 && left > 0; ++length) {
    codes *= 2;
    const unsigned most = std::min(left, codes > 1 ? codes - 1 : 0);
    const unsigned count = length == 16 ? most : below(std::min(most, 40U) + 1);
    made.counts[length] = static_cast<uint8_t>(count);
    codes -= count;
    left -= count;
  }
  return made;
}

// The standard's words, without any table.
class Plain {
 public:
  Plain(const Definition& definition, const std::vector<uint8_t>& data)
      : definition_(definition), data_(data) {}

  bool read(const Scan& scan, bool refine, Blocks& blocks) {
    for (size_t i = 0; i < blocks.nonzero.size(); ++i) {
      int16_t* const out = blocks.out.data() + i * 64;
      if (!(refine ? add_bits(scan, out) : read_new(scan, out))) return false;
      blocks.nonzero[i] = 0;
      for (unsigned k = 0; k < 64; ++k) blocks.nonzero[i] |= uint64_t{out[kNatural[k]] != 0} << (63 - k);
      if (at_ > data_.size() * 8) return false;
    }
    return true;
  }
  size_t position() const { return at_; }
  unsigned run() const { return run_; }

 private:
  int bit() {
    const size_t at = at_++;
    return at < data_.size() * 8 ? data_[at / 8] >> (7 - at % 8) & 1 : 0;
  }
  int bits(int count) {
    int value = 0;
    for (; count > 0; --count) value = value << 1 | bit();
    return value;
  }
  // -1 if there is no such code.
  int symbol() {
    int code = 0, first = 0, index = 0;
    for (size_t length = 1; length <= 16; ++length) {
      code = code << 1 | bit();
      const int count = definition_.counts[length];
      if (code - first < count) return definition_.symbols[static_cast<size_t>(index + code - first)];
      index += count;
      first = (first + count) << 1;
    }
    return -1;
  }
  bool read_new(const Scan& scan, int16_t* out) {
    if (run_ > 0) {
      --run_;
      return true;
    }
    for (unsigned k = scan.first; k <= scan.last; ++k) {
      const int found = symbol();
      if (found < 0) return false;
      const int run = found >> 4, size = found & 15;
      if (size == 0 && run < 15) {
        run_ = (1U << run) + static_cast<unsigned>(bits(run)) - 1;
        return true;
      }
      k += static_cast<unsigned>(run);
      if (k > scan.last) return false;
      if (size == 0) continue;
      int value = bits(size);
      if (value < 1 << (size - 1)) value += 1 - (1 << size);
      out[kNatural[k]] = static_cast<int16_t>(value * (1 << scan.shift));
    }
    return true;
  }
  void correct(int16_t& coefficient, int one) {
    if (bit()) coefficient = static_cast<int16_t>(coefficient + (coefficient < 0 ? -one : one));
  }
  bool add_bits(const Scan& scan, int16_t* out) {
    const int one = 1 << scan.shift;
    unsigned k = scan.first;
    for (; run_ == 0 && k <= scan.last; ++k) {
      const int found = symbol();
      if (found < 0) return false;
      int run = found >> 4;
      if ((found & 15) == 0 && run < 15) {
        run_ = (1U << run) + static_cast<unsigned>(bits(run));
        break;
      }
      const int value = (found & 15) == 0 ? 0 : bit() ? one : -one;
      for (;; ++k) {
        if (k > scan.last) return false;
        int16_t& coefficient = out[kNatural[k]];
        if (coefficient != 0) {
          correct(coefficient, one);
        } else if (--run < 0) {
          coefficient = static_cast<int16_t>(value);
          break;
        }
      }
    }
    if (run_ == 0) return true;
    for (; k <= scan.last; ++k) {
      if (out[kNatural[k]] != 0) correct(out[kNatural[k]], one);
    }
    --run_;
    return true;
  }

  const Definition& definition_;
  const std::vector<uint8_t>& data_;
  size_t at_ = 0;
  unsigned run_ = 0;
};

// Blocks whose coefficients have bits above `shift` only.
Blocks any_blocks(size_t count, int shift, unsigned density) {
  Blocks blocks{std::vector<uint64_t>(count), std::vector<int16_t>(count * 64)};
  for (size_t i = 0; i < count * 64; ++i) {
    if (below(100) >= density) continue;
    const int value = (1 + static_cast<int>(below(20))) * (2 << shift);
    blocks.out[i / 64 * 64 + kNatural[i % 64]] = static_cast<int16_t>(below(2) ? value : -value);
    blocks.nonzero[i / 64] |= uint64_t{1} << (63 - i % 64);
  }
  return blocks;
}

bool check(const ScanKernels& kernels, bool refine) {
  const Definition definition = any_definition(refine);
  HuffmanTable table;
  CHECK(table.load(definition.counts.data(), definition.symbols.data(),
                   refine ? Codes::ac_refine : Codes::ac_first));
  std::vector<uint8_t> data(1 + below(3000));
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random_bits() | (below(4) ? 0 : random_bits()));
  std::vector<uint8_t> padded = data;
  padded.resize(data.size() + 300);
  const unsigned first = 1 + below(63);
  Scan scan{&table,
            first,
            first + below(64 - first),
            static_cast<int>(below(4)),
            {0, 0, padded.data()},
            padded.data() + data.size()};
  const size_t count = 1 + below(12);
  Blocks before = any_blocks(count, scan.shift, refine ? below(100) : 0), expected = before;
  Plain plain(definition, data);
  const bool sound = plain.read(scan, refine, expected);
  for (const bool wanted : {true, false}) {
    Blocks blocks = before;
    Scan here = scan;
    const auto read = refine ? kernels.refine : kernels.first;
    CHECK(read(here, count, blocks.nonzero.data(), wanted ? blocks.out.data() : nullptr) == sound);
    if (!sound) continue;
    CHECK(blocks.nonzero == expected.nonzero);
    CHECK(blocks.out == (wanted ? expected.out : before.out));
    CHECK(here.end_run == plain.run());
    CHECK(static_cast<size_t>(here.reader.next - padded.data()) * 8 -
              static_cast<size_t>(here.reader.count) ==
          plain.position());
  }
  return sound;
}

}  // namespace

int main() {
  const ScanKernels* sets[3];
  const size_t count = available_scan_kernels(sets);
  CHECK(&scan_kernels() == sets[count - 1]);
  for (size_t i = 0; i < count; ++i) {
    for (const bool refine : {false, true}) {
      int sound = 0;
      for (int round = 0; round < 4000; ++round) sound += check(*sets[i], refine);
      CHECK(sound > 100 && sound < 3900);
    }
  }
}
