// Compiled once per instruction set; see huffman.hpp about functions that are defined elsewhere.
#include "scans.hpp"

#if defined(__BMI2__)
#include <immintrin.h>
#endif

namespace foreload {

namespace {

constexpr uint64_t kTop = uint64_t{1} << 63;

// How often `bits` has a 1, and where the first is. (Those of <bit> could be linked from another set.)
inline int count_ones(uint64_t bits) {
  return __builtin_popcountll(bits);
}
inline unsigned first_one(uint64_t bits) {
  return static_cast<unsigned>(__builtin_clzll(bits));
}

// The instruction is slow on processors that have it but not AVX-512.
#if defined(__BMI2__) && defined(__AVX512F__)

// `bits` without its first `count` ones.
inline uint64_t without_first(uint64_t bits, int count) {
  const int left = count_ones(bits) - count;
  return left <= 0 ? 0 : _pdep_u64(~uint64_t{0} >> (64 - left), bits);
}
// Those ones of `mask` that stand at ones of `bits`, whose lowest bits belong to them in their order.
inline uint64_t chosen(uint64_t bits, uint64_t mask) {
  return _pdep_u64(bits, mask);
}

#else

inline uint64_t without_first(uint64_t bits, int count) {
  for (; count > 0 && bits != 0; --count) bits ^= kTop >> first_one(bits);
  return bits;
}
inline uint64_t chosen(uint64_t bits, uint64_t mask) {
  uint64_t out = 0;
  for (; mask != 0; mask &= mask - 1, bits >>= 1) out |= mask & -mask & -(bits & 1);
  return out;
}

#endif

// The number of blocks that a symbol which ends a block stands for, by its entry and the value behind it.
inline uint32_t blocks_ended(uint32_t entry, int value) {
  const int range = 1 << (entry >> 24);
  return static_cast<uint32_t>(range + (value < 0 ? value + range - 1 : value));
}

template <bool wanted>
bool read_first(Scan& scan, size_t blocks, uint64_t* nonzero, int16_t* out) {
  const HuffmanTable& table = *scan.table;
  const uint32_t past = scan.last + 1;
  // A copy, because a member would be written back to memory at every block.
  BitReader reader = scan.reader;
  uint32_t run = scan.end_run;
  for (; blocks > 0; --blocks, ++nonzero, out += wanted ? 64 : 0) {
    if (run > 0) {
      --run;
      continue;
    }
    uint32_t k = scan.first, entry = 0;
    int value = 0;
    uint64_t found = 0;
    const auto step = [&] {
      entry = table.entry(reader);
      value = read_value(entry, reader);
      k += entry >> 8 & 0xFF;
      if (k > past) return false;
      if constexpr (wanted) out[kNatural[k - 1]] = static_cast<int16_t>(value * (1 << scan.shift));
      found |= uint64_t{value != 0} << (64 - k);
      return k < past;
    };
    do {
      reader.refill();
    } while (step() && step());
    *nonzero |= found;
    if (k > past) {
      if (k <= HuffmanTable::kStepsToEnd || reader.is_past(scan.end)) return false;
      run = blocks_ended(entry, value) - 1;
    } else if (reader.is_past(scan.end)) {
      return false;
    }
  }
  scan.reader = reader;
  scan.end_run = run;
  return true;
}

// Reads a bit for each one of `mask`; those ones whose bit is set.
inline uint64_t read_bits(BitReader& reader, uint64_t mask) {
  constexpr int kMost = 32;
  const int count = count_ones(mask);
  if (__builtin_expect(count > kMost, 0)) {
    const uint64_t rest = without_first(mask, kMost), begin = mask ^ rest;
    reader.refill();
    const uint64_t found = chosen(reader.bits >> (64 - kMost), begin);
    reader.drop(kMost);
    reader.refill();
    const uint64_t bits = reader.bits >> 1 >> (63 - (count - kMost));
    reader.drop(static_cast<uint32_t>(count - kMost));
    return found | chosen(bits, rest);
  }
  const uint64_t bits = reader.bits >> 1 >> (63 - count);
  reader.drop(static_cast<uint32_t>(count));
  return chosen(bits, mask);
}

template <bool wanted>
bool refine(Scan& scan, size_t blocks, uint64_t* nonzero, int16_t* out) {
  const HuffmanTable& table = *scan.table;
  const uint64_t band = ~uint64_t{0} >> scan.first & ~uint64_t{0} << (63 - scan.last);
  const int one = 1 << scan.shift;
  BitReader reader = scan.reader;
  uint32_t run = scan.end_run;
  for (; blocks > 0; --blocks, ++nonzero, out += wanted ? 64 : 0) {
    const uint64_t known = *nonzero & band;
    uint64_t left = band, zeros = band ^ known, corrected = 0, added = 0;
    while (run == 0 && left != 0) {
      reader.refill();
      const uint32_t entry = table.entry(reader), steps = entry >> 8 & 0xFF;
      const int value = read_value(entry, reader);
      if (steps >= HuffmanTable::kStepsInvalid) {
        if (steps < HuffmanTable::kStepsToEnd) return false;
        run = blocks_ended(entry, value);
        break;
      }
      zeros = without_first(zeros, static_cast<int>(steps) - 1);
      if (zeros == 0) return false;
      const unsigned k = first_one(zeros);
      const uint64_t bit = kTop >> k;
      const uint64_t passed = left & known & ~(bit | (bit - 1));
      left &= bit - 1;
      zeros ^= bit;
      corrected |= read_bits(reader, passed);
      added |= value != 0 ? bit : 0;
      if constexpr (wanted) out[kNatural[k]] = static_cast<int16_t>(value * one);
    }
    if (run > 0) {
      --run;
      reader.refill();
      corrected |= read_bits(reader, left & known);
    }
    *nonzero |= added;
    if constexpr (wanted) {
      for (; corrected != 0; corrected &= corrected - 1) {
        int16_t& coefficient = out[kNatural[__builtin_ctzll(corrected) ^ 63]];
        coefficient = static_cast<int16_t>(coefficient + (coefficient < 0 ? -one : one));
      }
    }
    if (reader.is_past(scan.end)) return false;
  }
  scan.reader = reader;
  scan.end_run = run;
  return true;
}

bool first(Scan& scan, size_t blocks, uint64_t* nonzero, int16_t* out) {
  return out != nullptr ? read_first<true>(scan, blocks, nonzero, out)
                        : read_first<false>(scan, blocks, nonzero, out);
}

bool refine_any(Scan& scan, size_t blocks, uint64_t* nonzero, int16_t* out) {
  return out != nullptr ? refine<true>(scan, blocks, nonzero, out)
                        : refine<false>(scan, blocks, nonzero, out);
}

}  // namespace

#define FORELOAD_CONCAT2(a, b) a##b
#define FORELOAD_CONCAT(a, b) FORELOAD_CONCAT2(a, b)
extern const ScanKernels FORELOAD_CONCAT(scan_kernels_, FORELOAD_ISA);
const ScanKernels FORELOAD_CONCAT(scan_kernels_, FORELOAD_ISA) = {first, refine_any};

}  // namespace foreload
