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
  // Of no numbers, until another one is assigned.
  Permutation() = default;
  // Throws Error(value) unless 1 <= n <= 2^62.
  Permutation(uint64_t n, Key key);

  uint64_t operator()(uint64_t position) const;
  // out[i] = permutation(start + i * stride). Throws Error(index) unless all of these positions are below n,
  // and Error(value) if the stride is 0.
  void fill(uint64_t start, size_t count, int64_t* out, uint64_t stride = 1) const;
  // The position of a value: inverse(permutation(i)) == i.
  uint64_t inverse(uint64_t value) const;
  // out[i] = inverse(values[i]). Throws Error(index) unless all values are from 0 to n - 1.
  void find(const int64_t* values, size_t count, int64_t* out) const;

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
  template <size_t kCount>
  void restore(uint32_t* rows, uint32_t* columns) const;
  uint64_t walk(uint64_t value) const;
  uint64_t walk_back(uint64_t value) const;

  uint64_t n_ = 0;
  uint32_t num_rows_ = 0, num_columns_ = 0;
  std::array<RoundKey, kRounds> round_keys_{};
  std::array<uint8_t, kSmall> shuffled_{};   // of a small n
  std::array<uint8_t, kSmall> positions_{};  // the inverse of it
};

}  // namespace foreload
