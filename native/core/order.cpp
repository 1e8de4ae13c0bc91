#include "order.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "error.hpp"

namespace foreload {

namespace {

// The finaliser of splitmix64: every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(uint64_t n, Key key) : n_(n) {
  if (n == 0 || n > uint64_t{1} << 62) {
    throw Error(ErrorKind::value, "a permutation needs 1 <= n <= 2^62, got n=" + std::to_string(n));
  }
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(n - 1)) + 1) / 2);
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  Random random(key, ~uint64_t{0});
  rounds_ = half_bits_ <= kSmallHalfBits ? kRoundsOfSmall : kRounds;
  for (int i = 0; i < rounds_; ++i) {
    round_keys_[i] = uint64_t{random.bits()} << 32;
    round_keys_[i] |= random.bits();
  }
}

uint64_t Permutation::operator()(uint64_t position) const {
  uint64_t value = position;
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & half_mask_;
    for (int i = 0; i < rounds_; ++i) {
      const uint64_t next = left ^ (mix(right + round_keys_[i]) & half_mask_);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= n_);
  return value;
}

void Permutation::fill(uint64_t start, size_t count, int64_t* out) const {
  if (start > n_ || count > n_ - start) {
    throw Error(ErrorKind::index, "positions " + std::to_string(start) + " to " +
                                      std::to_string(start + count) + " lie outside an epoch of " +
                                      std::to_string(n_) + " samples");
  }
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<int64_t>((*this)(start + i));
  }
}

}  // namespace foreload
