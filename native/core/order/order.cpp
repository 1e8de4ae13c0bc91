#include "order.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "error.hpp"

namespace foreload {

namespace {

// Hashes a coordinate to a number in [0, size). The multipliers are those of "lowbias32" (Wellons,
// "Prospecting for hash functions", 2018).
uint32_t amount(uint32_t size, uint32_t other, uint32_t before, uint32_t after) {
  uint32_t hash = (other ^ before) * 0x21F0AAAD;
  hash = ((hash ^ (hash >> 15)) + after) * 0x735A2D97;
  hash ^= hash >> 15;
  return static_cast<uint32_t>((uint64_t{hash} * size) >> 32);
}

// Shifts a coordinate in [0, size) by what the other one is hashed to.
uint32_t shifted(uint32_t coordinate, uint32_t size, uint32_t other, uint32_t before, uint32_t after) {
  const uint32_t moved = coordinate + amount(size, other, before, after);
  return std::min(moved, moved - size);  // size <= 2^31: one that is less than it becomes very large
}

// Undoes that.
uint32_t shifted_back(uint32_t coordinate, uint32_t size, uint32_t other, uint32_t before, uint32_t after) {
  const uint32_t moved = coordinate - amount(size, other, before, after);
  return std::min(moved, moved + size);  // below 0, it is very large
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
    for (uint32_t i = 0; i < n; ++i) positions_[shuffled_[i]] = static_cast<uint8_t>(i);
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

template <size_t kCount>
void Permutation::restore(uint32_t* rows, uint32_t* columns) const {
  for (size_t round = kRounds; round > 0; round -= 2) {
    const RoundKey one = round_keys_[round - 2], two = round_keys_[round - 1];
    for (size_t i = 0; i < kCount; ++i)
      columns[i] = shifted_back(columns[i], num_columns_, rows[i], two.before, two.after);
    for (size_t i = 0; i < kCount; ++i)
      rows[i] = shifted_back(rows[i], num_rows_, columns[i], one.before, one.after);
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

// The cells from n on that walk() passed, the other way round.
uint64_t Permutation::walk_back(uint64_t value) const {
  while (value >= n_) {
    uint32_t row = static_cast<uint32_t>(value / num_columns_),
             column = static_cast<uint32_t>(value % num_columns_);
    restore<1>(&row, &column);
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

void Permutation::fill(uint64_t start, size_t count, int64_t* out, uint64_t stride) const {
  if (stride == 0) throw Error(ErrorKind::value, "the stride must be 1 or more");
  if (start > n_ || (count > 0 && (start == n_ || count - 1 > (n_ - 1 - start) / stride))) {
    throw Error(ErrorKind::index, std::to_string(count) + " positions from " + std::to_string(start) +
                                      " on in steps of " + std::to_string(stride) +
                                      " lie outside an epoch of " + std::to_string(n_) + " samples");
  }
  if (n_ <= kSmall) {
    for (size_t i = 0; i < count; ++i) out[i] = shuffled_[start + i * stride];
    return;
  }
  auto row = static_cast<uint32_t>(start / num_columns_);
  auto column = static_cast<uint32_t>(start % num_columns_);
  const uint64_t step = std::min(stride, n_);  // a longer one takes a single position
  const auto more_rows = static_cast<uint32_t>(step / num_columns_);
  const auto more_columns = static_cast<uint32_t>(step % num_columns_);
  uint32_t rows[kBlock], columns[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    for (size_t i = 0; i < kBlock; ++i) {
      rows[i] = row;
      columns[i] = column;
      row += more_rows;
      column += more_columns;
      if (column >= num_columns_) {
        column -= num_columns_;
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

uint64_t Permutation::inverse(uint64_t value) const {
  if (n_ <= kSmall) return positions_[value];
  uint32_t row = static_cast<uint32_t>(value / num_columns_);
  uint32_t column = static_cast<uint32_t>(value % num_columns_);
  restore<1>(&row, &column);
  return walk_back(uint64_t{row} * num_columns_ + column);
}

void Permutation::find(const int64_t* values, size_t count, int64_t* out) const {
  for (size_t i = 0; i < count; ++i) {
    if (values[i] < 0 || static_cast<uint64_t>(values[i]) >= n_) {
      throw Error(ErrorKind::index, "sample " + std::to_string(values[i]) + " lies outside an epoch of " +
                                        std::to_string(n_) + " samples");
    }
  }
  if (n_ <= kSmall) {
    for (size_t i = 0; i < count; ++i) out[i] = positions_[static_cast<size_t>(values[i])];
    return;
  }
  uint32_t rows[kBlock] = {}, columns[kBlock] = {};
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(kBlock, count - begin);
    for (size_t i = 0; i < end; ++i) {
      const auto value = static_cast<uint64_t>(values[begin + i]);
      rows[i] = static_cast<uint32_t>(value / num_columns_);
      columns[i] = static_cast<uint32_t>(value % num_columns_);
    }
    restore<kBlock>(rows, columns);
    for (size_t i = 0; i < end; ++i) {
      const uint64_t position = uint64_t{rows[i]} * num_columns_ + columns[i];
      out[begin + i] = static_cast<int64_t>(position < n_ ? position : walk_back(position));
    }
  }
}

}  // namespace foreload
