// A keyed permutation of [0, n): any position in O(1), without holding n numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "random.hpp"

namespace foreload {

// A Feistel network over a rectangle of about n cells, whose two coordinates are shifted by turns (Black and
// Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002); the few cells from n on are permuted again
// until they are inside.
class Permutation {
 public:
  // Throws Error(value) unless 1 <= n <= 2^62.
  Permutation(uint64_t n, Key key);

  uint64_t operator()(uint64_t position) const;
  // out[i] = permutation(start + i). Throws Error(index) unless start + count <= n.
  void fill(uint64_t start, size_t count, int64_t* out) const;

 private:
  static constexpr int kRounds = 10;
  // With few cells the shifts reach some permutations more often than others (with 3 x 3, by half and more),
  // so up to this many numbers are shuffled instead.
  static constexpr uint64_t kSmall = 256;

  struct RoundKey {
    uint32_t before, after;
  };

  template <size_t kCount>
  void permute(uint32_t* rows, uint32_t* columns) const;
  uint64_t walk(uint64_t value) const;

  uint64_t n_;
  uint32_t num_rows_, num_columns_;
  std::array<RoundKey, kRounds> round_keys_;
  std::array<uint8_t, kSmall> shuffled_;  // of a small n
};

}  // namespace foreload
