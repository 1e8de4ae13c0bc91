// Kernels for the scans of a progressive JPEG that give the coefficients of a component other than the first:
// almost all of it. There is one set per instruction set; the best one that this processor can run is chosen
// at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "huffman.hpp"

namespace foreload {

// From zigzag order to rows.
inline constexpr uint8_t kNatural[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                         12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                         35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                         58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// A scan, and how far it is read.
struct Scan {
  const HuffmanTable* table = nullptr;
  unsigned first = 0, last = 0;  // coefficients, in zigzag order
  int shift = 0;                 // the bit that it gives, or the lowest one
  BitReader reader;
  const uint8_t* end = nullptr;  // of its data
  uint32_t end_run = 0;          // blocks that have nothing new
};

// Each reads the next `blocks` blocks, and returns false if the data is damaged. `nonzero` says for each
// which coefficients are not 0 so far, the first one in the highest bit. The coefficients themselves are in
// `out`, in rows; null if they are not wanted.
struct ScanKernels {
  bool (*first)(Scan& scan, size_t blocks, uint64_t* nonzero, int16_t* out);
  bool (*refine)(Scan& scan, size_t blocks, uint64_t* nonzero, int16_t* out);
};

// Returns the best set that this processor can run.
const ScanKernels& scan_kernels();

// Writes all sets that it can run to `out`, which has room for 3, the best one last; returns how many.
size_t available_scan_kernels(const ScanKernels** out);

}  // namespace foreload
