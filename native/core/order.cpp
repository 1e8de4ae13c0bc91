#include "order.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "error.hpp"

namespace foreload {

namespace {

// Shifts a coordinate in [0, size) by what the other one is hashed to. The hash's multipliers are those of
// "lowbias32" (Wellons, "Prospecting for hash functions", 2018).
uint32_t shifted(uint32_t coordinate, uint32_t size, uint32_t other, uint32_t before, uint32_t after) {
  uint32_t hash = (other ^ before) * 0x21F0AAAD;
  hash = ((hash ^ (hash >> 15)) + after) * 0x735A2D97;
  hash ^= hash >> 15;
  const uint32_t moved = coordinate + static_cast<uint32_t>((uint64_t{hash} * size) >> 32);
  return std::min(moved, moved - size);  // size <= 2^31: one that is less than it becomes very large
}

// Positions that are permuted side by side, by vector instructions.
constexpr size_t kBlock = 64;

}  // namespace

Permutation::Permutation(uint64_t n, Key key) : n_(n) {
  if (n == 0 || n > uint64_t{1} << 62) {
    throw Error(ErrorKind::value, "a permutation needs 1 <= n <= 2^62, got n=" + std::to_string(n));
  }
  Random random(key, ~uint64_t{0});
  if (n <= kSmall) {
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t j = random.below(i + 1);
      shuffled_[i] = shuffled_[j];
      shuffled_[j] = static_cast<uint8_t>(i);
    }
    return;
  }
  num_rows_ = static_cast<uint32_t>(std::sqrt(static_cast<double>(n)));
  while (uint64_t{num_rows_} * num_rows_ < n) ++num_rows_;
  num_columns_ = static_cast<uint32_t>((n + num_rows_ - 1) / num_rows_);
  for (RoundKey& round : round_keys_) {
    round.before = random.bits();
    round.after = random.bits();
  }
}

template <size_t kCount>
void Permutation::permute(uint32_t* rows, uint32_t* columns) const {
  for (size_t round = 0; round < kRounds; round += 2) {
    const RoundKey one = round_keys_[round], two = round_keys_[round + 1];
    for (size_t i = 0; i < kCount; ++i)
      rows[i] = shifted(rows[i], num_rows_, columns[i], one.before, one.after);
    for (size_t i = 0; i < kCount; ++i)
      columns[i] = shifted(columns[i], num_columns_, rows[i], two.before, two.after);
  }
}

uint64_t Permutation::walk(uint64_t value) const {
  while (value >= n_) {
    uint32_t row = static_cast<uint32_t>(value / num_columns_),
             column = static_cast<uint32_t>(value % num_columns_);
    permute<1>(&row, &column);
    value = uint64_t{row} * num_columns_ + column;
  }
  return value;
}

uint64_t Permutation::operator()(uint64_t position) const {
  if (n_ <= kSmall) return shuffled_[position];
  uint32_t row = static_cast<uint32_t>(position / num_columns_);
  uint32_t column = static_cast<uint32_t>(position % num_columns_);
  permute<1>(&row, &column);
  return walk(uint64_t{row} * num_columns_ + column);
}

void Permutation::fill(uint64_t start, size_t count, int64_t* out) const {
  if (start > n_ || count > n_ - start) {
    throw Error(ErrorKind::index, "positions " + std::to_string(start) + " to " +
                                      std::to_string(start + count) + " lie outside an epoch of " +
                                      std::to_string(n_) + " samples");
  }
  if (n_ <= kSmall) {
    std::copy_n(shuffled_.begin() + static_cast<ptrdiff_t>(start), count, out);
    return;
  }
  auto row = static_cast<uint32_t>(start / num_columns_);
  auto column = static_cast<uint32_t>(start % num_columns_);
  uint32_t rows[kBlock], columns[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    for (size_t i = 0; i < kBlock; ++i) {
      rows[i] = row;
      columns[i] = column;
      if (++column == num_columns_) {
        column = 0;
        ++row;
      }
    }
    permute<kBlock>(rows, columns);
    const size_t end = std::min(kBlock, count - begin);
    for (size_t i = 0; i < end; ++i) {
      const uint64_t value = uint64_t{rows[i]} * num_columns_ + columns[i];
      out[begin + i] = static_cast<int64_t>(value < n_ ? value : walk(value));
    }
  }
}

}  // namespace foreload
